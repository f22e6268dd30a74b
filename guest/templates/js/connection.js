// @ts-check
/// <reference path="./weir-policy.d.ts" />
// A policy about connections: Streamable HTTP, first in the modern era, then in the legacy era.

/**
 * @param {import("weir:policy/connection@0.1.0").Transport} transport
 * @param {import("weir:policy/connection@0.1.0").Era} era
 */
const candidate = (transport, era) => ({ transport, era, extensions: [] });

/** @type {typeof import("weir:policy/connection@0.1.0")} */
export const connection = {
  next(to, history) {
    const last = history.at(-1);
    if (!last) {
      return { tag: "attempt", val: candidate("http", to.requiredEra ?? "modern") };
    }
    if (last.era === "modern" && last.outcome.tag === "unsupported" && !to.requiredEra) {
      return { tag: "attempt", val: candidate("http", "legacy") };
    }
    if (last.outcome.tag === "unauthorized" && !last.credential) {
      return { tag: "authorize", val: candidate(last.transport, last.era) };
    }
    return { tag: "stop", val: `${to.name} cannot be reached over Streamable HTTP; look at its address` };
  },
};
