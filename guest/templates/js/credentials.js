// @ts-check
/// <reference path="./weir-policy.d.ts" />
// A policy about credentials: the secret `token` goes into `Authorization`.

/** @type {typeof import("weir:policy/credentials@0.1.0")} */
export const credentials = {
  decide(about) {
    const name = about.upstream.name;
    if (about.refusal) {
      return { tag: "stop", val: `${name} answers ${about.refusal.status} to its token; set another one` };
    }
    if (!about.secrets.includes("token")) {
      return { tag: "stop", val: `${name} has no secret \`token\`; add it to the \`secrets\` of its policy` };
    }
    return {
      tag: "attach",
      val: { header: "authorization", scheme: "Bearer", secret: "token", ttlSeconds: 300, extensions: [] },
    };
  },
};
