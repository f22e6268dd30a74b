//! What wasmtime makes of `wit/policy.wit`. One version of the package lives in one module; everything else of the gateway
//! speaks `weir_flow::facts`.

wasmtime::component::bindgen!({
    path: "../wit",
    world: "policy",
    imports: { "weir:policy/http.send": async },
    exports: { default: async },
});
