//! "Is … meant?": what a name that nobody declares was probably going to be.

/// The candidate nearest to `name`, if one is near enough to be meant.
pub fn nearest<T: AsRef<str> + Ord>(name: &str, candidates: impl IntoIterator<Item = T>) -> Option<T> {
    let distances = candidates.into_iter().map(|found| (distance(name, found.as_ref()), found));
    let (distance, found) = distances.min()?;
    (distance <= name.len() / 4).then_some(found)
}

/// Characters to insert, delete or replace to get from one text to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_meant() {
        let known = ["proxy.logLevel", "proxy.logFormat"];
        assert_eq!(nearest("proxy.loglevel", known), Some("proxy.logLevel"));
        assert_eq!(nearest("proxi.logFormt", known), Some("proxy.logFormat"));
        assert_eq!(nearest("entirely", known), None);
    }
}
