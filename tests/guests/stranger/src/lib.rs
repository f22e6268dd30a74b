//! A good component that is no policy.

#[cfg(target_family = "wasm")]
mod component {
    #![allow(unsafe_code, reason = "generated code crosses the component boundary")]

    wit_bindgen::generate!({
        inline: "
            package tests:stranger@1.0.0;
            interface greeting { greet: func() -> string; }
            world stranger { export greeting; }
        ",
    });

    struct Stranger;

    impl exports::tests::stranger::greeting::Guest for Stranger {
        fn greet() -> String {
            "hello".into()
        }
    }

    export!(Stranger);
}
