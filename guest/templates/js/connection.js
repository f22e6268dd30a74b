// A policy about connections: Streamable HTTP, first in the modern era, then in the legacy era.

const candidate = (transport, era) => ({ transport, era, extensions: [] });

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
