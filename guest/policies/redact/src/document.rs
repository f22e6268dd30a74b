//! The strings in a JSON message of MCP that may hold personal data. Nothing is parsed into a tree, so depth costs little.

use std::ops::Range;

use crate::text::unescape;

/// Where in a message an object or array stands. It says what its keys mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A whole notification or request.
    Message,
    /// Its `params`.
    Params,
    /// A `result`, and whatever the protocol defines within.
    Protocol,
    /// An `error`.
    Error,
    /// What an error carries.
    ErrorData,
    /// Data of the application, in which no key has a meaning.
    Application,
    /// The `params` of a request to the upstream. Only its arguments count.
    Request,
    /// Nothing of it counts, as with schemas.
    Ignored,
}

/// How a string is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// As it is.
    Text,
    /// It may be base64.
    Encoded,
    /// Not at all.
    Skip,
}

impl Place {
    /// What stands under a key: how its string is looked at, and where its object or array is.
    fn below(self, key: &str) -> (Treatment, Self) {
        use Treatment::{Encoded, Skip, Text};
        match (self, key) {
            (Self::Message, "jsonrpc" | "id" | "method") => (Skip, Self::Ignored),
            (Self::Message, "params") => (Text, Self::Params),
            (Self::Error, "data") => (Text, Self::ErrorData),
            (Self::ErrorData, "elicitations") => (Text, Self::Protocol),
            (Self::Params, "data") => (Text, Self::Application),
            (Self::Request, "arguments") => (Skip, Self::Application),
            (Self::Request | Self::Ignored, _) => (Skip, Self::Ignored),
            (Self::Message | Self::ErrorData | Self::Application, _) => (Text, Self::Application),
            (Self::Params | Self::Protocol | Self::Error, key) => match key {
                "structuredContent" | "arguments" | "input" => (Text, Self::Application),
                "data" | "blob" => (Encoded, Self::Application),
                "requestedSchema" | "inputSchema" | "outputSchema" => (Skip, Self::Ignored),
                _ if is_protocol(key) => (Skip, Self::Protocol),
                _ => (Text, Self::Protocol),
            },
        }
    }

    const fn strings(self) -> Treatment {
        match self {
            Self::Request | Self::Ignored => Treatment::Skip,
            _ => Treatment::Text,
        }
    }
}

/// Whether the string under this key is for machines: an identifier, an address, a time or a word of the protocol.
fn is_protocol(key: &str) -> bool {
    let identifier = ["id", "taskId", "requestId", "progressToken", "elicitationId", "toolUseId", "requestState"];
    let cursor = ["cursor", "nextCursor"];
    let address = ["uri", "url", "src"];
    let word = ["type", "mimeType", "role", "method", "status", "resultType", "level", "mode", "jsonrpc"];
    let time = ["createdAt", "lastUpdatedAt", "lastModified"];
    [&identifier[..], &cursor, &address, &word, &time].iter().any(|keys| keys.contains(&key))
        || key.starts_with("io.modelcontextprotocol/")
}

struct Frame {
    object: bool,
    expects_key: bool,
    place: Place,
    value: (Treatment, Place),
}

/// The strings that may hold personal data: where their inside is, and how to look at it. Keys are not among them.
pub(crate) struct Strings<'a> {
    json: &'a str,
    at: usize,
    root: Place,
    frames: Vec<Frame>,
}

impl<'a> Strings<'a> {
    pub(crate) const fn of(json: &'a str, root: Place) -> Self {
        Self { json, at: 0, root, frames: Vec::new() }
    }

    /// What a value at the present place is.
    fn value(&self) -> (Treatment, Place) {
        match self.frames.last() {
            Some(frame) if frame.object => frame.value,
            Some(frame) => (frame.place.strings(), frame.place),
            None => (self.root.strings(), self.root),
        }
    }

    fn open(&mut self, object: bool) {
        let (_, place) = self.value();
        self.frames.push(Frame { object, expects_key: object, place, value: (place.strings(), place) });
    }

    /// The end of the string whose inside begins here.
    fn end(&self, start: usize) -> usize {
        let mut escaped = false;
        let closes = |byte: &u8| {
            let closes = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            closes
        };
        let length = self.json.as_bytes()[start..].iter().position(closes);
        length.map_or(self.json.len(), |length| start + length)
    }
}

impl Iterator for Strings<'_> {
    type Item = (Range<usize>, Treatment);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let byte = *self.json.as_bytes().get(self.at)?;
            self.at += 1;
            match byte {
                b'{' => self.open(true),
                b'[' => self.open(false),
                b'}' | b']' => {
                    self.frames.pop();
                }
                b',' => {
                    if let Some(frame) = self.frames.last_mut() {
                        frame.expects_key = frame.object;
                    }
                }
                b'"' => {
                    let string = self.at..self.end(self.at);
                    self.at = string.end + 1;
                    let inside = &self.json[string.clone()];
                    match self.frames.last_mut() {
                        Some(frame) if frame.expects_key => {
                            frame.expects_key = false;
                            frame.value = frame.place.below(&unescape(inside));
                        }
                        _ => match self.value().0 {
                            Treatment::Skip => {}
                            treatment => return Some((string, treatment)),
                        },
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(json: &str, root: Place) -> Vec<&str> {
        Strings::of(json, root).map(|(range, _)| &json[range]).collect()
    }

    #[test]
    fn values_count_and_keys_do_not() {
        let json = r#"{"a":"1","b\"":["2",{"c":"3"},["4"]],"d":4,"e":{"f":null,"g":"\"5\\"},"h":"6"}"#;
        assert_eq!(texts(json, Place::Application), ["1", "2", "3", "4", r#"\"5\\"#, "6"]);
        assert_eq!(texts(r#""alone""#, Place::Protocol), ["alone"]);
    }

    #[test]
    fn words_of_the_protocol_are_left_alone() {
        let json = r#"{"content":[{"type":"text","text":"1","annotations":{"audience":["user"],"lastModified":"no"}},
            {"type":"resource","resource":{"uri":"no","mime\u0054ype":"no","text":"2","_meta":{"x":"3",
            "io.modelcontextprotocol/related-task":{"taskId":"no"}}}}],"requestState":"no","resultType":"no",
            "structuredContent":{"type":"4","uri":"5","id":["6"],"data":"7"},"nextCursor":"no"}"#;
        assert_eq!(texts(json, Place::Protocol), ["1", "user", "2", "3", "4", "5", "6", "7"]);
    }

    #[test]
    fn data_of_the_protocol_may_be_encoded() {
        let json = r#"{"content":[{"type":"image","data":"A","mimeType":"image/png"}],"contents":[{"blob":"B"}]}"#;
        let treatments: Vec<_> = Strings::of(json, Place::Protocol).map(|(_, treatment)| treatment).collect();
        assert_eq!(treatments, [Treatment::Encoded; 2]);
        let json = r#"{"method":"notifications/message","params":{"data":"A","level":"info"}}"#;
        let found: Vec<_> = Strings::of(json, Place::Message).map(|(range, how)| (&json[range], how)).collect();
        assert_eq!(found, [("A", Treatment::Text)]);
    }

    #[test]
    fn messages_and_errors_keep_their_frame() {
        let json = r#"{"jsonrpc":"no","id":"no","method":"no","params":{"requestId":"no","message":"1",
            "requestedSchema":{"enum":["no"]},"messages":[{"role":"no","content":{"type":"no","text":"2"}}]}}"#;
        assert_eq!(texts(json, Place::Message), ["1", "2"]);
        let json = r#"{"code":-1,"message":"1","data":{"id":"2","elicitations":[{"url":"no","elicitationId":"no","message":"3"}]}}"#;
        assert_eq!(texts(json, Place::Error), ["1", "2", "3"]);
        assert_eq!(texts(r#"{"code":-1,"message":"1","data":"2"}"#, Place::Error), ["1", "2"]);
    }

    #[test]
    fn only_arguments_count_in_a_request() {
        let json = r#"{"name":"no","arguments":{"type":"1","name":["2"],"arguments":"3"},"x":{"arguments":"no"}}"#;
        assert_eq!(texts(json, Place::Request), ["1", "2", "3"]);
    }

    #[test]
    fn what_is_no_json_does_no_harm() {
        for json in ["", "\"", "\"\\", "{\"a", "{\"a\":\"b", "]]}}\"x\"", "{,,\"a\":,\"b\"}", "{\"é\\\"é"] {
            let _ = texts(json, Place::Protocol);
        }
        let deep = "[".repeat(1 << 20);
        assert_eq!(Strings::of(&deep, Place::Protocol).count(), 0);
    }
}
