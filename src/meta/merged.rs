//! Several overlays read as one: in the order of the keys, of each key the newest value.

use super::layers::Overlay;
use super::schema::Key;
use std::collections::btree_map::Range;
use std::iter::Peekable;
use std::ops::RangeBounds;

type Record<'a> = (&'a Key, &'a Option<Vec<u8>>);

/// See the module.
pub(super) struct Merged<'a> {
    /// Newest first.
    layers: Vec<Peekable<Range<'a, Key, Option<Vec<u8>>>>>,
}

impl<'a> Merged<'a> {
    /// The records of `newest_first` with keys in `keys`.
    pub(super) fn new(newest_first: impl IntoIterator<Item = &'a Overlay>, keys: impl RangeBounds<[u8]> + Clone) -> Merged<'a> {
        Merged { layers: newest_first.into_iter().map(|layer| layer.range::<[u8], _>(keys.clone()).peekable()).collect() }
    }
}

impl<'a> Iterator for Merged<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        if let [only] = self.layers.as_mut_slice() {
            return only.next();
        }
        let least: &'a Key = self.layers.iter_mut().filter_map(|layer| layer.peek().map(|(key, _)| *key)).min()?;
        let mut newest = None;
        for layer in &mut self.layers {
            let record = layer.next_if(|(key, _)| *key == least);
            newest = newest.or(record);
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Bound;

    fn overlay(records: &[(u8, Option<u8>)]) -> Overlay {
        records.iter().map(|(key, value)| (vec![*key], value.map(|value| vec![value]))).collect()
    }

    #[test]
    fn of_each_key_the_newest_value_in_order() {
        let layers = [overlay(&[(3, Some(30)), (5, None)]), overlay(&[(1, Some(1)), (3, Some(3)), (5, Some(5)), (9, Some(9))])];
        let found: Vec<_> = Merged::new(&layers, ..).map(|(key, value)| (key[0], value.as_ref().map(|value| value[0]))).collect();
        assert_eq!(found, [(1, Some(1)), (3, Some(30)), (5, None), (9, Some(9))]);
        let found: Vec<_> =
            Merged::new(&layers, (Bound::Included(&[2u8][..]), Bound::Excluded(&[9u8][..]))).map(|(key, _)| key[0]).collect();
        assert_eq!(found, [3, 5]);
        assert_eq!(Merged::new([], ..).next(), None);
    }
}
