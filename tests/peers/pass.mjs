/** Passes a request on as `passed`, and its response back as it comes. */
export function pass(asked, passed, answer) {
  passed.on('response', (response) => {
    answer.writeHead(response.statusCode, response.headers);
    answer.flushHeaders();
    response.pipe(answer);
  });
  passed.on('error', () => answer.destroy());
  answer.on('close', () => passed.destroy());
  asked.pipe(passed);
}
