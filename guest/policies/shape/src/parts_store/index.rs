//! Which parts a caller has in the store, the oldest first. No caller takes the room of all.

use std::collections::VecDeque;

/// The most parts of one caller.
const PARTS: usize = 64;
/// The most bytes of one caller, with keys.
pub(super) const BYTES: usize = 512 << 10;
/// The most chunks that one question deletes. Together with all else it stays within its operations.
const DELETED: usize = 24;

/// A part of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) id: String,
    pub(super) chunks: usize,
    pub(super) bytes: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Index(VecDeque<IndexEntry>);

/// What becomes of parts that are to be stored.
pub(super) struct AdmittedParts {
    /// Whether there is room for each.
    pub(super) admitted: Vec<bool>,
    /// What has to go for them.
    pub(super) removed: Vec<IndexEntry>,
}

impl Index {
    /// A line that nobody can read is left out.
    pub(super) fn decode(value: &[u8]) -> Self {
        let entry = |line: &str| {
            let mut words = line.split(' ');
            let id = words.next().filter(|id| !id.is_empty())?.to_owned();
            Some(IndexEntry { id, chunks: words.next()?.parse().ok()?, bytes: words.next()?.parse().ok()? })
        };
        Self(std::str::from_utf8(value).unwrap_or_default().lines().filter_map(entry).collect())
    }

    pub(super) fn encode(&self) -> String {
        self.0.iter().map(|entry| format!("{} {} {}\n", entry.id, entry.chunks, entry.bytes)).collect()
    }

    /// Takes new parts in. The oldest others go if there is no room. A part without chunks is not taken in.
    pub(super) fn admit(&mut self, entries: &[IndexEntry]) -> AdmittedParts {
        let (mut removed, mut deleted) = (Vec::new(), 0);
        let mut new: Vec<IndexEntry> = Vec::new();
        let mut admit = |entry: &IndexEntry| {
            let news = new.iter().map(|entry| entry.bytes).sum::<usize>() + entry.bytes;
            if entry.chunks == 0 || news > BYTES || new.len() == PARTS {
                return false;
            }
            while self.0.len() + new.len() >= PARTS || self.bytes() + news > BYTES {
                let Some(oldest) = self.0.front() else { return false };
                if deleted + oldest.chunks > DELETED {
                    return false;
                }
                deleted += oldest.chunks;
                removed.extend(self.0.pop_front());
            }
            new.push(entry.clone());
            true
        };
        let admitted = entries.iter().map(&mut admit).collect();
        self.0.extend(new);
        AdmittedParts { admitted, removed }
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|entry| entry.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: usize, chunks: usize, bytes: usize) -> IndexEntry {
        IndexEntry { id: format!("{id:032x}"), chunks, bytes }
    }

    fn ids(index: &Index) -> Vec<usize> {
        index.0.iter().map(|entry| usize::from_str_radix(&entry.id, 16).expect("it is a number")).collect()
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let mut index = Index::default();
        index.admit(&[entry(1, 1, 100), entry(2, 5, 400_000)]);
        assert_eq!(Index::decode(index.encode().as_bytes()), index);
        assert_eq!(Index::decode(b"\n 1 2\nabc\nabc x 1\nabc 1 2\n\xff"), Index::default());
        assert_eq!(Index::decode(b"abc 1 2\nabc\n").0.len(), 1);
    }

    #[test]
    fn the_oldest_go_first() {
        let mut index = Index::default();
        for id in 0..5 {
            assert_eq!(index.admit(&[entry(id, 1, BYTES / 4)]).admitted, [true]);
        }
        assert_eq!(ids(&index), [1, 2, 3, 4]);
        let admission = index.admit(&[entry(5, 3, BYTES / 2 + 1)]);
        assert_eq!((admission.admitted, admission.removed.len()), (vec![true], 3));
        assert_eq!(ids(&index), [4, 5]);
    }

    #[test]
    fn a_question_does_not_remove_its_own_parts() {
        let mut index = Index::default();
        index.admit(&[entry(0, 1, 100)]);
        let half = BYTES / 2;
        let admission = index.admit(&[entry(1, 3, half), entry(2, 3, half), entry(3, 1, 1), entry(4, 0, 0)]);
        assert_eq!(admission.admitted, [true, true, false, false]);
        assert_eq!(ids(&index), [1, 2]);
    }

    #[test]
    fn parts_are_counted_too() {
        let mut index = Index::default();
        for id in 0..PARTS {
            index.admit(&[entry(id, 1, 10)]);
        }
        assert_eq!(index.admit(&[entry(PARTS, 1, 10), entry(PARTS + 1, 1, 10)]).removed.len(), 2);
        assert_eq!((index.0.len(), ids(&index)[0]), (PARTS, 2));
        // More would have to go than one question may delete.
        let admission = index.admit(&[entry(99, 5, BYTES)]);
        assert_eq!((admission.admitted, admission.removed.len()), (vec![false], DELETED));
        assert_eq!(index.0.len(), PARTS - DELETED);
    }
}
