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
  const withModel = testResults.filter(({ name }) => name.replaceAll('\\', '/').includes('/test/real-model/'));
  const assertions = withModel.flatMap(({ assertionResults }) => assertionResults);
  const ran = assertions.filter(({ status }) => status === 'passed' || status === 'failed').length;
  console.log(`tests with a real model: ${ran} ran, ${assertions.length - ran} skipped`);
  console.log(`${numPassedTests} passed, ${numFailedTests + broken.length} failed`);
}
