/** `node .ci/summary.mjs REPORT`: vitest's JSON report as the line `N passed, N failed`. A file that could not run counts as one failed test. */
import { readFileSync } from 'node:fs';

const text = readFileSync(process.argv[2], 'utf8');
if (text === '') {
  console.log('The tests did not run: a stage before them failed.');
  console.log('0 passed, 0 failed');
} else {
  const { numPassedTests, numFailedTests, testResults } = JSON.parse(text);
  const broken = testResults.filter(
    ({ status, assertionResults }) =>
      status === 'failed' && !assertionResults.some((assertion) => assertion.status === 'failed'),
  );
  console.log(`${numPassedTests} passed, ${numFailedTests + broken.length} failed`);
}
