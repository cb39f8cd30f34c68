/*
 * GCC 12's _tile_loadconfig tells the compiler that it reads 8 of its 64 bytes, so the stores of the others are dropped and llama.cpp
 * ends with an illegal instruction. Included before every file of its build (-include); the same instruction, with all 64 bytes named.
 */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13 && defined(__AMX_TILE__)
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%X0" ::"m"(*(const char(*)[64])(config)))
#endif
