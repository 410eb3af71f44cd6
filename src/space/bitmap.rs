//! A bitmap of blocks: one bit a block, set = used. Pure; no locks.

/// Bits in words of 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
    len: u32,
}

impl Bitmap {
    /// All clear. `len` in blocks.
    pub fn new(len: u32) -> Bitmap {
        Bitmap { words: vec![0; len.div_ceil(64) as usize], len }
    }

    /// From stored bytes; None when their number is wrong.
    pub fn from_bytes(len: u32, bytes: &[u8]) -> Option<Bitmap> {
        let mut bitmap = Bitmap::new(len);
        if bytes.len() != bitmap.words.len() * 8 {
            return None;
        }
        for (word, bytes) in bitmap.words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        Some(bitmap)
    }

    /// For storing.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The same bits, more of them (clear) or fewer.
    pub fn resized(&self, len: u32) -> Bitmap {
        let mut resized = Bitmap { words: self.words.clone(), len };
        resized.words.resize(len.div_ceil(64) as usize, 0);
        if let Some(last) = resized.words.last_mut()
            && !len.is_multiple_of(64)
        {
            *last &= (1 << (len % 64)) - 1;
        }
        resized
    }

    /// Blocks in the bitmap.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// No blocks at all?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of set bits.
    pub fn count(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Is the block used? Blocks behind the end are.
    pub fn get(&self, block: u32) -> bool {
        block >= self.len || self.words.get(block as usize / 64).is_none_or(|word| word >> (block % 64) & 1 == 1)
    }

    /// Sets or clears `count` bits from `first`; how many changed.
    pub fn set(&mut self, first: u32, count: u32, used: bool) -> u32 {
        let (mut at, end) = (first.min(self.len), first.saturating_add(count).min(self.len));
        let mut changed = 0;
        while at < end {
            let bit = at % 64;
            let step = (64 - bit).min(end - at);
            let mask = if step == 64 { u64::MAX } else { ((1u64 << step) - 1) << bit };
            let word = &mut self.words[at as usize / 64];
            if used {
                changed += (mask & !*word).count_ones();
                *word |= mask;
            } else {
                changed += (mask & *word).count_ones();
                *word &= !mask;
            }
            at += step;
        }
        changed
    }

    /// Free blocks from `first` on without a gap, at most `most`.
    pub fn free_run(&self, first: u32, most: u32) -> u32 {
        let end = first.saturating_add(most).min(self.len);
        let mut at = first;
        while at < end {
            let word = self.words[at as usize / 64] >> (at % 64);
            if word == 0 {
                at += 64 - at % 64;
            } else {
                at += word.trailing_zeros();
                break;
            }
        }
        at.min(end).saturating_sub(first)
    }

    /// The first free block at or behind `from`.
    pub fn next_free(&self, from: u32) -> Option<u32> {
        let mut at = from;
        while at < self.len {
            let free = !self.words[at as usize / 64] >> (at % 64);
            if free != 0 {
                at += free.trailing_zeros();
                return (at < self.len).then_some(at);
            }
            at += 64 - at % 64;
        }
        None
    }

    /// The first used block at or behind `from`.
    pub fn next_used(&self, from: u32) -> Option<u32> {
        let mut at = from;
        while at < self.len {
            let used = self.words[at as usize / 64] >> (at % 64);
            if used != 0 {
                at += used.trailing_zeros();
                return (at < self.len).then_some(at);
            }
            at += 64 - at % 64;
        }
        None
    }

    /// The first free run at or behind `from` of at least `want` blocks, or else the longest: (first, count up to `want`).
    pub fn find_run(&self, from: u32, want: u32) -> Option<(u32, u32)> {
        let mut best: Option<(u32, u32)> = None;
        let mut at = from;
        while let Some(first) = self.next_free(at) {
            let count = self.free_run(first, want);
            if count >= want {
                return Some((first, count));
            }
            if best.is_none_or(|(_, most)| count > most) {
                best = Some((first, count));
            }
            at = first + count + 1;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_vector(len in 1u32..400, steps in prop::collection::vec((0u32..420, 0u32..130, any::<bool>()), 1..40)) {
            let mut bitmap = Bitmap::new(len);
            let mut model = vec![false; len as usize];
            for (first, count, used) in steps {
                let mut changed = 0;
                for block in first..(first + count).min(len) {
                    changed += u32::from(model[block as usize] != used);
                    model[block as usize] = used;
                }
                prop_assert_eq!(bitmap.set(first, count, used), changed);
                prop_assert_eq!(bitmap.count() as usize, model.iter().filter(|used| **used).count());
                let next = (first..len).find(|block| !model[*block as usize]);
                prop_assert_eq!(bitmap.next_free(first), next);
                prop_assert_eq!(bitmap.next_used(first), (first..len).find(|block| model[*block as usize]));
                for other in [len / 2, len + 100] {
                    let resized = bitmap.resized(other);
                    prop_assert!((0..other).all(|block| resized.get(block) == model.get(block as usize).is_some_and(|used| *used)));
                }
                if let Some(next) = next {
                    let run = (next..len).take_while(|block| !model[*block as usize]).count() as u32;
                    prop_assert_eq!(bitmap.free_run(next, 1000), run);
                }
            }
            prop_assert_eq!(Bitmap::from_bytes(len, &bitmap.to_bytes()).unwrap(), bitmap);
        }
    }
}
