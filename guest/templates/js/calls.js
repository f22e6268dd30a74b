// @ts-check
/// <reference path="./weir-policy.d.ts" />
// A policy about calls: nothing is deleted.

/** @type {typeof import("weir:policy/calls@0.1.0")} */
export const calls = {
  // What it wants to see. What it does not want to see never crosses to it.
  wants(_settings) {
    return {
      methods: ["tools/call"],
      names: ["delete_*"],
      request: "facts",
      answer: "nothing",
      event: "nothing",
      entries: [],
      extensions: [],
    };
  },

  // What becomes of a request. The decision is kept for a minute for calls with the same facts.
  before(about, _params) {
    const text = `${about.name} is not allowed here: nothing is deleted; archive it instead`;
    return {
      verdict: { tag: "deny", val: { code: null, text, extensions: [] } },
      headers: [],
      labels: [],
      memory: "",
      ttlSeconds: 60,
      extensions: [],
    };
  },

  // What becomes of what comes back.
  after(_about, memory, _what) {
    return { verdict: { tag: "pass" }, labels: [], memory, extensions: [] };
  },

  // What becomes of entries of lists.
  entries(_of, entries) {
    return entries.map(() => ({ tag: "show" }));
  },
};
