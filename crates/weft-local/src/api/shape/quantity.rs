//! Quantities (`500m`, `64Mi`) in their canonical form.

/// The canonical form: no fraction, the largest suffix that needs none. `None` if the text is no quantity, or one in
/// the exponent form, which stays as it is.
pub(super) fn canonical(text: &str) -> Option<String> {
    let split =
        text.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let nanos = parse_nanos(number)?;
    let binary = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(power) = binary.iter().position(|known| !known.is_empty() && *known == suffix) {
        let value = nanos.checked_mul(1024_i128.checked_pow(u32::try_from(power).ok()?)?)?;
        if value % NANO == 0 {
            let mut whole = value / NANO;
            let mut power = 0;
            while whole != 0 && whole % 1024 == 0 && power < 6 {
                whole /= 1024;
                power += 1;
            }
            return Some(format!("{whole}{}", binary[power]));
        }
        return decimal(value);
    }
    let decimals = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let power = decimals.iter().position(|known| *known == suffix)?;
    let value = match power {
        0..3 => nanos / 1000_i128.pow(3 - u32::try_from(power).ok()?),
        _ => nanos.checked_mul(1000_i128.checked_pow(u32::try_from(power - 3).ok()?)?)?,
    };
    decimal(value)
}

const NANO: i128 = 1_000_000_000;

fn parse_nanos(number: &str) -> Option<i128> {
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() > 18 {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanos = whole * NANO;
    let mut unit = NANO / 10;
    for digit in fraction.chars() {
        nanos += i128::from(digit.to_digit(10)?) * unit;
        unit /= 10;
    }
    Some(if negative { -nanos } else { nanos })
}

fn decimal(nanos: i128) -> Option<String> {
    if nanos == 0 {
        return Some("0".to_owned());
    }
    let suffixes = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let (mut value, mut power) = (nanos, 0);
    while value % 1000 == 0 && power + 1 < suffixes.len() {
        value /= 1000;
        power += 1;
    }
    Some(format!("{value}{}", suffixes[power]))
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn forms() {
        for (given, expected) in [
            ("1000m", "1"),
            ("0.5", "500m"),
            ("0.5Gi", "512Mi"),
            ("64Mi", "64Mi"),
            ("1024Ki", "1Mi"),
            ("1500", "1500"),
            ("2000", "2k"),
            ("0", "0"),
            ("-1.5", "-1500m"),
            ("1.5Mi", "1536Ki"),
            ("100M", "100M"),
            ("1500m", "1500m"),
        ] {
            assert_eq!(canonical(given).as_deref(), Some(expected), "{given}");
        }
        for given in ["", "x", "1x", "1e3", "."] {
            assert_eq!(canonical(given), None, "{given}");
        }
    }
}
