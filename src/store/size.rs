//! Sizes as people write them.

use crate::error::{Error, Result};

/// Bytes in `text`: a whole number and, if wanted, K, M, G or T (powers of 1024, in either case, also written KiB or KB).
pub fn parse_size(text: &str) -> Result<u64> {
    let wrong =
        || Error::usage(format!("`{text}` is no size: write a number of bytes, or one with K, M, G or T, like 512M or 10G"));
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let suffix = trimmed.get(digits.len()..).unwrap_or_default().trim_start().to_ascii_uppercase();
    let shift = match suffix.as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(wrong()),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// `bytes` for people: in the largest unit in which it is a whole number.
pub(super) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("512M", 512 << 20),
            ("10G", 10 << 30),
            ("10GiB", 10 << 30),
            ("10gb", 10 << 30),
            (" 3 K ", 3 << 10),
            ("16T", 16 << 40),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_named() {
        for text in ["", "G", "-1", "+1", "1.5G", "10X", "10 20", "0x10", "99999999999999999999", "99999999T", "1GG", "1G5"] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn shown() {
        assert_eq!(show_size(16 << 20), "16 MiB");
        assert_eq!(show_size(1025), "1025 bytes");
        assert_eq!(show_size(0), "0 bytes");
    }
}
