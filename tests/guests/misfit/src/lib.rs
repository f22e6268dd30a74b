//! A component whose exports have the right names and the wrong types.

#[cfg(target_family = "wasm")]
mod component {
    #![allow(unsafe_code, reason = "generated code crosses the component boundary")]

    wit_bindgen::generate!({
        inline: "
            package weir:policy@0.1.0;
            interface connection { next: func() -> string; }
            world misfit { export connection; }
        ",
    });

    struct Misfit;

    impl exports::weir::policy::connection::Guest for Misfit {
        fn next() -> String {
            "http".into()
        }
    }

    export!(Misfit);
}
