//! Which placeholder stands for which value.
//!
//! As bytes it is the counters (name and next number of each kind) and the values, those of longest disuse first.

use std::collections::BTreeMap;

/// The longest mapping in bytes. Many callers share the store, so none may fill it.
pub(crate) const SIZE: usize = 64 << 10;
/// The longest value in bytes.
const VALUE: usize = 4 << 10;
const FORMAT: u8 = 1;
/// What a value takes beside its text: kind, number, length.
const HEADER: usize = 1 + 4 + 2;

/// Places of texts by kind. All maps of the component are of this type, for each further type takes room.
pub(crate) type Index = BTreeMap<(u8, String), usize>;

/// A value that needs a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted<'a> {
    pub(crate) kind: &'a str,
    pub(crate) value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Before,
    Now,
    Gone,
}

#[derive(Debug)]
struct Entry {
    kind: u8,
    number: u32,
    value: String,
    used: Use,
}

/// The values of one caller.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    /// The next number of each kind. Numbers are never given out twice.
    next: Vec<(String, u32)>,
    entries: Vec<Entry>,
}

impl Mapping {
    /// Bytes that are no mapping are an empty one.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        Self::try_decode(bytes).unwrap_or_default()
    }

    fn try_decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [format, kinds] = take(&mut rest, 2)?.try_into().ok()?;
        let mut mapping = Self::default();
        for _ in 0..kinds {
            let length = *take(&mut rest, 1)?.first()?;
            let name = text(&mut rest, length.into())?;
            mapping.next.push((name, number(&mut rest)?));
        }
        while !rest.is_empty() {
            let kind = *take(&mut rest, 1)?.first()?;
            let number = number(&mut rest)?;
            let length = u16::from_be_bytes(take(&mut rest, 2)?.try_into().ok()?);
            mapping.entries.push(Entry { kind, number, value: text(&mut rest, length.into())?, used: Use::Before });
        }
        (format == FORMAT).then_some(mapping)
    }

    /// The counters alone, as a mapping without values.
    pub(crate) fn counters(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT, u8::try_from(self.next.len()).unwrap_or(u8::MAX)];
        for (name, next) in &self.next {
            bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(&next.to_be_bytes());
        }
        bytes
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.counters();
        for used in [Use::Before, Use::Now] {
            for entry in self.entries.iter().filter(|entry| entry.used == used) {
                bytes.push(entry.kind);
                bytes.extend_from_slice(&entry.number.to_be_bytes());
                bytes.extend_from_slice(&u16::try_from(entry.value.len()).unwrap_or(u16::MAX).to_be_bytes());
                bytes.extend_from_slice(entry.value.as_bytes());
            }
        }
        bytes
    }

    /// Gives out no number that these counters have given out.
    pub(crate) fn continue_from(&mut self, other: &Self) {
        for (name, next) in &other.next {
            match self.next.iter_mut().find(|(known, _)| known == name) {
                Some((_, known)) => *known = (*known).max(*next),
                None => self.next.push((name.clone(), *next)),
            }
        }
    }

    /// The number of each of these values, which are all different. Values of longest disuse make room for new ones; none for
    /// what still has no room.
    pub(crate) fn assign(&mut self, wanted: &[Wanted<'_>]) -> Vec<Option<u32>> {
        let kinds: Vec<Option<u8>> = wanted.iter().map(|one| self.kind(one.kind)).collect();
        let asked = || kinds.iter().copied().zip(wanted.iter().map(|one| one.value.as_str()));
        let mut numbers = vec![None; wanted.len()];
        let mut places = Index::new();
        for (at, (kind, value)) in asked().enumerate() {
            places.extend(kind.map(|kind| ((kind, value.to_owned()), at)));
        }
        for entry in &mut self.entries {
            let place = places.get(&(entry.kind, entry.value.clone()));
            if let Some(number) = place.and_then(|place| numbers.get_mut(*place)) {
                *number = Some(entry.number);
                entry.used = Use::Now;
            }
        }
        let (mut size, mut oldest) = (self.encode().len(), 0);
        for ((kind, value), number) in asked().zip(&mut numbers).filter(|(_, number)| number.is_none()) {
            let Some(kind) = kind.filter(|_| value.len() <= VALUE) else { continue };
            while size + HEADER + value.len() > SIZE {
                let Some(entry) = self.entries.get_mut(oldest) else { break };
                oldest += 1;
                if entry.used == Use::Before {
                    entry.used = Use::Gone;
                    size -= HEADER + entry.value.len();
                }
            }
            if size + HEADER + value.len() <= SIZE {
                *number = self.add(kind, value);
                size += HEADER + value.len();
            }
        }
        numbers
    }

    fn add(&mut self, kind: u8, value: &str) -> Option<u32> {
        let (_, next) = self.next.get_mut(usize::from(kind))?;
        let number = *next;
        *next = number.checked_add(1)?;
        self.entries.push(Entry { kind, number, value: value.to_owned(), used: Use::Now });
        Some(number)
    }

    /// The index of a kind, which begins with the number 1; none if there are too many.
    fn kind(&mut self, name: &str) -> Option<u8> {
        let known = self.next.iter().position(|(known, _)| known == name);
        let index = u8::try_from(known.unwrap_or(self.next.len())).ok().filter(|index| *index < u8::MAX)?;
        if known.is_none() {
            self.next.push((name.to_owned(), 1));
        }
        Some(index)
    }

    /// Which entry each placeholder stands for: its number, and its kind as the caller knows it.
    pub(crate) fn placeholders(&self, kind: impl Fn(&str) -> Option<u8>) -> Index {
        let kinds: Vec<Option<u8>> = self.next.iter().map(|(name, _)| kind(name)).collect();
        let mut index = Index::new();
        for (at, entry) in self.entries.iter().enumerate() {
            if let Some(Some(kind)) = kinds.get(usize::from(entry.kind)) {
                index.insert((*kind, entry.number.to_string()), at);
            }
        }
        index
    }

    /// The value of an entry, which counts as used.
    pub(crate) fn value(&mut self, at: usize) -> Option<&str> {
        let entry = self.entries.get_mut(at)?;
        entry.used = Use::Now;
        Some(&entry.value)
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(take(rest, 4)?.try_into().ok()?))
}

fn text(rest: &mut &[u8], length: usize) -> Option<String> {
    String::from_utf8(take(rest, length)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(kind: &str, value: impl Into<String>) -> Wanted<'_> {
        Wanted { kind, value: value.into() }
    }

    fn value(mapping: &mut Mapping, kind: &str, number: u32) -> Option<String> {
        let index = mapping.placeholders(|name| (name == kind).then_some(0));
        mapping.value(*index.get(&(0, number.to_string()))?).map(str::to_owned)
    }

    #[test]
    fn numbers_count_per_kind_and_stay() {
        let mut mapping = Mapping::default();
        let first = mapping.assign(&[wanted("card", "a"), wanted("email", "b"), wanted("card", "c")]);
        assert_eq!(first, [Some(1), Some(1), Some(2)]);
        let mut mapping = Mapping::decode(&mapping.encode());
        let second = mapping.assign(&[wanted("card", "c"), wanted("card", "d"), wanted("email", "a")]);
        assert_eq!(second, [Some(2), Some(3), Some(2)]);
        assert_eq!(value(&mut mapping, "card", 1).as_deref(), Some("a"));
        assert_eq!(value(&mut mapping, "email", 2).as_deref(), Some("a"));
        assert_eq!(value(&mut mapping, "card", 4), None);
        assert_eq!(value(&mut mapping, "iban", 1), None);
    }

    #[test]
    fn counters_outlive_the_values() {
        let mut mapping = Mapping::default();
        mapping.assign(&[wanted("card", "a"), wanted("email", "b")]);
        let counters = mapping.counters();
        let mut fresh = Mapping::default();
        fresh.continue_from(&Mapping::decode(&counters));
        assert_eq!(value(&mut fresh, "card", 1), None);
        assert_eq!(fresh.assign(&[wanted("card", "x")]), [Some(2)]);
    }

    #[test]
    fn the_oldest_values_make_room() {
        let long = |at: u32| format!("{at:04000}");
        let mut mapping = Mapping::default();
        for at in 0..16 {
            assert_eq!(mapping.assign(&[wanted("key", long(at))]), [Some(at + 1)]);
            mapping = Mapping::decode(&mapping.encode());
        }
        assert!(value(&mut mapping, "key", 1).is_some());
        mapping = Mapping::decode(&mapping.encode());
        assert_eq!(mapping.assign(&[wanted("key", long(16))]), [Some(17)]);
        let bytes = mapping.encode();
        assert!(bytes.len() <= SIZE);
        let mut mapping = Mapping::decode(&bytes);
        assert!(value(&mut mapping, "key", 1).is_some(), "it was used last");
        assert!(value(&mut mapping, "key", 2).is_none(), "it was not used for longest");
        assert!(value(&mut mapping, "key", 3).is_some());
        assert_eq!(mapping.assign(&[wanted("key", long(1))]), [Some(18)], "no number is given out twice");
    }

    #[test]
    fn values_of_one_question_do_not_displace_each_other() {
        let many: Vec<_> = (0..5000).map(|at| wanted("email", format!("person{at}@example.com"))).collect();
        let mut mapping = Mapping::default();
        let numbers = mapping.assign(&many);
        let given = numbers.iter().flatten().count();
        assert!((1000..5000).contains(&given), "{given}");
        assert_eq!(numbers.first(), Some(&Some(1)));
        assert_eq!(numbers.last(), Some(&None));
        assert!(mapping.encode().len() <= SIZE);
    }

    #[test]
    fn a_value_that_is_too_long_has_no_number() {
        let long = "x".repeat(VALUE + 1);
        assert_eq!(Mapping::default().assign(&[wanted("key", long), wanted("key", "y")]), [None, Some(1)]);
    }

    #[test]
    fn broken_bytes_are_an_empty_mapping() {
        let mut mapping = Mapping::default();
        mapping.assign(&[wanted("card", "a"), wanted("email", "bé")]);
        let bytes = mapping.encode();
        for end in 0..bytes.len() {
            let _ = Mapping::decode(&bytes[..end]);
        }
        assert_eq!(value(&mut Mapping::decode(&[]), "card", 1), None);
        assert_eq!(Mapping::decode(&[FORMAT + 1, 0]).counters(), Mapping::default().counters());
        assert_eq!(Mapping::decode(b"\x01\xff\xff").counters(), Mapping::default().counters());
    }
}
