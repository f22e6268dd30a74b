//! What wit-bindgen makes of `wit/policy.wit`: one module for each world that a policy may implement, with the same types.

#![allow(unsafe_code, reason = "generated code crosses the component boundary")]
#![allow(missing_docs, unreachable_pub, unused_qualifications, reason = "generated code")]
#![allow(clippy::all, clippy::use_self, clippy::allow_attributes_without_reason, reason = "generated code")]

/// The world `connection-policy`, and the capabilities.
pub mod connection {
    wit_bindgen::generate!({
        path: "wit",
        world: "connection-policy",
        additional_derives: [PartialEq, Eq, Hash],
        pub_export_macro: true,
        export_macro_name: "export_connection",
        default_bindings_module: "weir_policy::bindings::connection",
        type_section_suffix: "connection",
        generate_all,
    });
}

/// The world `credentials-policy`.
pub mod credentials {
    wit_bindgen::generate!({
        path: "wit",
        world: "credentials-policy",
        additional_derives: [PartialEq, Eq, Hash],
        pub_export_macro: true,
        export_macro_name: "export_credentials",
        default_bindings_module: "weir_policy::bindings::credentials",
        type_section_suffix: "credentials",
        with: {
            "weir:policy/types@0.1.0": super::connection::weir::policy::types,
            "weir:policy/log@0.1.0": super::connection::weir::policy::log,
            "weir:policy/clock@0.1.0": super::connection::weir::policy::clock,
            "weir:policy/random@0.1.0": super::connection::weir::policy::random,
            "weir:policy/secrets@0.1.0": super::connection::weir::policy::secrets,
            "weir:policy/http@0.1.0": super::connection::weir::policy::http,
            "weir:policy/store@0.1.0": super::connection::weir::policy::store,
        },
    });
}

/// The world `calls-policy`.
pub mod calls {
    wit_bindgen::generate!({
        path: "wit",
        world: "calls-policy",
        additional_derives: [PartialEq, Eq, Hash],
        pub_export_macro: true,
        export_macro_name: "export_calls",
        default_bindings_module: "weir_policy::bindings::calls",
        type_section_suffix: "calls",
        with: {
            "weir:policy/types@0.1.0": super::connection::weir::policy::types,
            "weir:policy/log@0.1.0": super::connection::weir::policy::log,
            "weir:policy/clock@0.1.0": super::connection::weir::policy::clock,
            "weir:policy/random@0.1.0": super::connection::weir::policy::random,
            "weir:policy/secrets@0.1.0": super::connection::weir::policy::secrets,
            "weir:policy/http@0.1.0": super::connection::weir::policy::http,
            "weir:policy/store@0.1.0": super::connection::weir::policy::store,
        },
    });
}
