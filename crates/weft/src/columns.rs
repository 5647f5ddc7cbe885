//! Tables for people: columns aligned by spaces, no line ends in spaces.

/// Rows of cells, the first being the titles. An empty cell is shown as `-`.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let shown = |cell: &String| if cell.is_empty() { "-".to_owned() } else { cell.clone() };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(shown).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// `9s`, `4m`, `3h`, `12d`: as long as a glance needs.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["A", "BB", "C"], ["long", "", "é"], ["x", "yyy", ""]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        assert_eq!(aligned(&rows), "A     BB   C\nlong  -    é\nx     yyy  -\n");
    }

    #[test]
    fn ages_have_one_unit() {
        let all = [(0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_799, "47h"), (172_800, "2d")];
        for (seconds, text) in all {
            assert_eq!(age(seconds), text);
        }
    }
}
