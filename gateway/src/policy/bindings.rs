//! What wasmtime makes of `wit/policy.wit`. One version of the package lives in one module; everything else of the gateway
//! speaks `weir_flow::facts`.

wasmtime::component::bindgen!({
    path: "../wit",
    world: "policy",
    imports: {
        "weir:policy/http.send": async,
        "weir:policy/store.get": async,
        "weir:policy/store.set": async,
        "weir:policy/store.delete": async,
        "weir:policy/store.keys": async,
    },
    exports: { default: async },
    // What a recording says of questions and answers.
    additional_derives: [serde::Serialize],
});
