// What goes wrong with a server on demand, in front of the real one: an answer in place of its own, or none for a while.

// One trouble for each path: { status, headers, body, json } is said in place of the answer; { stall: 'before' } leaves a
// request alone, { stall: 'after' } does what it asks for and leaves the answer alone; `times` is how often, for ever if
// it is left out.
let troubles = {};
let held = [];

export function make(wanted) {
  troubles = wanted;
  const going = held;
  held = [];
  for (const go of going) go();
}

export const waiting = () => held.length;

// Whether the request is dealt with.
export function meet(path, response, go) {
  const trouble = troubles[path];
  if (!trouble) return false;
  if (trouble.times !== undefined && trouble.times-- <= 0) return false;
  if (trouble.stall === 'before') {
    // What nobody waits for any more is not done.
    held.push(() => response.socket && !response.socket.destroyed && go());
    return true;
  }
  if (trouble.stall === 'after') {
    const end = response.end.bind(response);
    response.end = (...all) => {
      held.push(() => end(...all));
      return response;
    };
    return false;
  }
  const body = trouble.json ? JSON.stringify(trouble.json) : (trouble.body ?? '');
  const type = trouble.json ? 'application/json' : 'text/html';
  response.writeHead(trouble.status, { 'content-type': type, ...trouble.headers }).end(body);
  return true;
}
