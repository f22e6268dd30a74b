//! Guests that mean harm, as components, for whoever tests the gateway against them.

macro_rules! guests {
    ($($(#[$meta:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$meta])* pub const $name: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".wasm"));)*
    };
}

guests! {
    /// Wants all the memory there is.
    BOMB = "bomb";
    /// Uses every capability there is, and stops with what it was given.
    CURIOUS = "curious";
    /// Logs far too much, and answers nevertheless.
    FLOOD = "flood";
    /// Calls its imports as its settings say.
    IMPORT_FUZZER = "import-fuzzer";
    /// Decides about calls as its settings say.
    JUDGE = "judge";
    /// Reads a secret and panics with it, and has its panics logged.
    LEAKER = "leaker";
    /// Breaks the rule that its setting `lie` names.
    LIAR = "liar";
    /// The example that masks card numbers.
    MASK_CARDS = "mask-cards";
    /// Needs no import, and opens the upstream for callers that have a team.
    MINIMAL = "minimal";
    /// Exports the right names with the wrong types.
    MISFIT = "misfit";
    /// Never answers.
    SPIN = "spin";
    /// A good component that is no policy.
    STRANGER = "stranger";
    /// The example that gets its token from a service.
    TOKEN_SERVICE = "token-service";
    /// Panics at every question.
    TRAP = "trap";
    /// Comes with WASI, prints, and stops with what it found behind it; or panics, as its settings say.
    WASI = "wasi";
}
