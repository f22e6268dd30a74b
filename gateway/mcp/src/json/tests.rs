use super::*;

fn accepts(text: &str) -> bool {
    scan(text.as_bytes()).is_ok()
}

#[test]
fn the_grammar_is_kept() {
    for good in [
        "0",
        "-0",
        "-0.0e-0",
        "1e400",
        "1152921504606846977",
        "1E+2",
        "0.1",
        " \t\r\n1\n",
        "true",
        "false",
        "null",
        "\"\"",
        "\"\u{7f}\u{2028}é😀\"",
        r#""\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00""#,
        r#""\ud800""#,
        "[]",
        "[ ]",
        "{}",
        "{ }",
        "[[],{}]",
        r#"{"a":1,"a":[1,{"b":null}]}"#,
        " [ 1 , 2 ] ",
        r#"{"":""}"#,
        r#"{ "a" : { } , "b" : [ ] }"#,
    ] {
        assert!(accepts(good), "{good}");
    }
    for bad in [
        "",
        " ",
        "01",
        "-",
        "+1",
        "1.",
        ".1",
        "1e",
        "1e+",
        "-a",
        "0x1",
        "1_0",
        "NaN",
        "Infinity",
        "tru",
        "nulll",
        "True",
        "'a'",
        "\"",
        "\"a",
        "\"\\\"",
        r#""\x""#,
        r#""\u12g4""#,
        r#""\u12"#,
        "\"a\nb\"",
        "\"\u{0}\"",
        "\"\u{1f}\"",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1}",
        "{]",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{a:1}",
        "{1:1}",
        "{\"a\" 1}",
        "{\"a\",1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":1]",
        "1 1",
        "{}{}",
        "[]]",
        "/**/1",
        "\u{feff}1",
        "\u{a0}1",
        "\u{c}1",
        "[1]\0",
    ] {
        assert!(!accepts(bad), "{bad:?}");
    }
}

#[test]
fn a_fault_is_found_wherever_it_lies_in_a_string() {
    for length in 0..200 {
        for (byte, good) in [(0x00, false), (0x1f, false), (0x20, true), (0x7f, true), (b'\\', false)] {
            for at in 0..length {
                let mut text = vec![b'x'; length + 2];
                (text[0], text[length + 1]) = (b'"', b'"');
                text[at + 1] = byte;
                // `\x` is no escape, and `\"` leaves the string without an end.
                assert_eq!(scan(&text).is_ok(), good, "{byte} at {at} of {length}");
            }
        }
    }
}

#[test]
fn faults_have_their_place() {
    let fault = |bytes: &[u8]| match scan(bytes) {
        Err(JsonError::Syntax { offset, what }) => (offset, what),
        other => panic!("{other:?}"),
    };
    assert_eq!(fault(b"[1,x]"), (3, "expected a value"));
    assert_eq!(fault(b"{\"a\":\"\x01\"}"), (6, "control character in a string"));
    assert_eq!(fault(b"\"abc\xff\""), (4, "not UTF-8"));
    assert_eq!(fault(b"{} {}"), (3, "something follows the end of the document"));
    assert_eq!(fault(b"[1"), (2, "expected a comma or a closing bracket"));
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(scan(nested(MAX_DEPTH).as_bytes()), Ok(()));
    assert_eq!(scan(nested(MAX_DEPTH + 1).as_bytes()), Err(JsonError::TooDeep));
    assert_eq!(scan("[".repeat(10_000_000).as_bytes()), Err(JsonError::TooDeep));
    let mixed = format!("{}1{}", "[{\"a\":".repeat(MAX_DEPTH / 2), "}]".repeat(MAX_DEPTH / 2));
    assert_eq!(scan(mixed.as_bytes()), Ok(()));
    // One bracket of the wrong kind, at each depth.
    for depth in 0..MAX_DEPTH {
        let mut wrong = nested(MAX_DEPTH).into_bytes();
        wrong[2 * MAX_DEPTH - 1 - depth] = b'}';
        assert!(matches!(scan(&wrong), Err(JsonError::Syntax { .. })), "{depth}");
    }
}

#[test]
fn values_are_found() {
    let raw = br#"{"a":{"b":1,"\u0062":2},"a":{"b" : [ 3 ]},"c":null,"\\":4,"d\n":5}"#;
    assert_eq!(get(raw, &["a", "b"]), Some(&b"[ 3 ]"[..]));
    assert_eq!(get(br#"{"b":1,"\u0062":2}"#, &["b"]), Some(&b"2"[..]));
    assert_eq!(get(raw, &["c"]), Some(&b"null"[..]));
    assert_eq!(get(raw, &["\\"]), Some(&b"4"[..]));
    assert_eq!(get(raw, &["\\\\"]), None);
    assert_eq!(get(raw, &["d\n"]), Some(&b"5"[..]));
    assert_eq!((get(raw, &["c", "x"]), get(raw, &["x"]), get(b"[1]", &["0"])), (None, None, None));
    assert_eq!(get(b"{}", &[]), Some(&b"{}"[..]));
}

#[test]
fn members_and_elements_come_in_order() {
    let raw = br#" { "a" : 1 , "\u0061" : [2,3] , "\ud800x" : "" } "#;
    let all: Vec<(String, &[u8])> = members(raw).map(|(key, value)| (key.into_owned(), value)).collect();
    let a = "a".to_owned();
    assert_eq!(all, [(a.clone(), &b"1"[..]), (a, b"[2,3]"), ("\u{fffd}x".to_owned(), b"\"\"")]);
    let all: Vec<&[u8]> = elements(b" [ 1 , {\"a\":[]},\"]\" ] ").collect();
    assert_eq!(all, [&b"1"[..], b"{\"a\":[]}", b"\"]\""]);
    for none in ["", "[]", "[ ]", "{}", "1", "\"[1]\"", "[", "x"] {
        assert_eq!(elements(none.as_bytes()).count() + members(none.as_bytes()).count(), 0, "{none}");
    }
}

#[test]
fn strings_are_decoded() {
    let of = |raw: &str| string(raw.as_bytes()).map(Cow::into_owned);
    assert_eq!(of(r#""a\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00z""#).unwrap(), "a\"\\/\u{8}\u{c}\n\r\té😀z");
    assert!(matches!(string("\"é\"".as_bytes()), Some(Cow::Borrowed("é"))));
    for none in ["1", "null", "", "\"", "\"a", "\"a\"b\"", r#""\ud83d""#, r#""\ud83dx\ude00""#, r#""\ude00\ud83d""#] {
        assert_eq!(of(none), None, "{none}");
    }
}

#[test]
fn quoting_is_undone_by_decoding() {
    let every: String = (0..0x250).filter_map(char::from_u32).chain(['\u{2028}', '😀']).collect();
    let quoted = quote(&every);
    assert_eq!(scan(quoted.as_bytes()), Ok(()));
    assert_eq!(string(quoted.as_bytes()).unwrap(), every);
    assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), every);
    assert_eq!(quote("\u{1}\u{1f}/"), r#""\u0001\u001f/""#);
}
