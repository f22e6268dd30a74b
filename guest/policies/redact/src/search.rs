//! Finds personal data in a message of MCP and writes the message without it.

use std::{borrow::Cow, ops::Range};

use crate::{
    base64,
    detect::{Budget, Detectors, Finding, TooMuch},
    document::{Place, Strings, Treatment},
    mapping::{Index, SIZE, Wanted},
    placeholder,
    text::{Change, rewrite_plain, rewrite_raw, unescape, within_message},
};

/// Base64 of this length is content of its own. A shorter one may be a number that only looks like base64.
const CONTENT: usize = 32;

/// A string of the message in which something was found.
struct Spot {
    string: Range<usize>,
    encoded: bool,
    findings: Range<usize>,
}

/// What was found in a message.
pub(crate) struct Found<'a> {
    json: &'a str,
    detectors: &'a Detectors,
    spots: Vec<Spot>,
    findings: Vec<Finding>,
}

/// The values that need numbers, and which of them each finding is.
pub(crate) struct Values<'a> {
    pub(crate) wanted: Vec<Wanted<'a>>,
    of_finding: Vec<Option<usize>>,
}

impl Values<'_> {
    /// The number of each finding, from the number of each value.
    pub(crate) fn numbers(&self, of_value: &[Option<u32>]) -> Vec<Option<u32>> {
        self.of_finding.iter().map(|index| index.and_then(|index| of_value.get(index).copied().flatten())).collect()
    }
}

impl<'a> Found<'a> {
    pub(crate) fn in_message(json: &'a str, root: Place, detectors: &'a Detectors) -> Result<Self, TooMuch> {
        let mut found = Self { json, detectors, spots: Vec::new(), findings: Vec::new() };
        let mut budget = Budget::of_message();
        for (string, treatment) in Strings::of(json, root) {
            let (encoded, findings) = found.in_string(&string, treatment, &mut budget)?;
            if !findings.is_empty() {
                let first = found.findings.len();
                found.findings.extend(findings);
                found.spots.push(Spot { string, encoded, findings: first..found.findings.len() });
            }
        }
        Ok(found)
    }

    fn in_string(
        &self,
        string: &Range<usize>,
        treatment: Treatment,
        budget: &mut Budget,
    ) -> Result<(bool, Vec<Finding>), TooMuch> {
        let text = unescape(&self.json[string.clone()]);
        if treatment == Treatment::Encoded
            && let Some(bytes) = base64::decode(&text)
        {
            let findings = match str::from_utf8(&bytes) {
                Ok(decoded) => self.detectors.find(decoded, budget)?,
                Err(_) => Vec::new(),
            };
            if !findings.is_empty() || text.len() >= CONTENT {
                return Ok((true, findings));
            }
        }
        Ok((false, self.detectors.find(&text, budget)?))
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// The kind of each finding.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = u8> {
        self.findings.iter().map(|finding| finding.kind)
    }

    /// What the string of a spot says.
    fn text(&self, spot: &Spot) -> Cow<'a, str> {
        let text = unescape(&self.json[spot.string.clone()]);
        if !spot.encoded {
            return text;
        }
        // It was decoded before, so this cannot fail now.
        Cow::Owned(base64::decode(&text).and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default())
    }

    /// The values, each once and in the order of the message, as many as a mapping could hold.
    pub(crate) fn values(&self) -> Values<'a> {
        let (mut known, mut wanted, mut size) = (Index::new(), Vec::new(), 0);
        let mut of_finding = Vec::with_capacity(self.findings.len());
        for spot in &self.spots {
            let text = self.text(spot);
            for finding in &self.findings[spot.findings.clone()] {
                let value = &text[finding.start..finding.end];
                let (next, key) = (known.len(), (finding.kind, value.to_owned()));
                let index = known.get(&key).copied().or_else(|| (size + value.len() <= SIZE).then_some(next));
                if index == Some(next) {
                    size += value.len();
                    known.insert(key, next);
                    wanted.push(Wanted { kind: self.detectors.name(finding.kind), value: value.to_owned() });
                }
                of_finding.push(index);
            }
        }
        Values { wanted, of_finding }
    }

    /// The message without what was found. `numbers` has the number of each finding, if it has one.
    pub(crate) fn redacted(&self, numbers: &[Option<u32>], keep_last: usize) -> Result<String, TooMuch> {
        let (mut out, mut written) = (String::with_capacity(self.json.len()), 0);
        for spot in &self.spots {
            let text = self.text(spot);
            let changes = spot.findings.clone().map(|index| {
                let Finding { start, end, kind } = self.findings[index];
                let name = self.detectors.name(kind);
                let with = match numbers.get(index).copied().flatten() {
                    Some(number) => placeholder::numbered(name, number),
                    None => placeholder::blank(name, &text[start..end], keep_last),
                };
                Change { start, end, with }
            });
            out.push_str(&self.json[written..spot.string.start]);
            if spot.encoded {
                out.push_str(&base64::encode(rewrite_plain(&text, changes)?.as_bytes()));
            } else {
                rewrite_raw(&mut out, &self.json[spot.string.clone()], changes)?;
            }
            written = spot.string.end;
        }
        out.push_str(&self.json[written..]);
        within_message(&out)?;
        Ok(out)
    }
}
