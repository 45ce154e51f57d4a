//! Tables, in boxes of their own that scroll where a screen is narrow.

use std::fmt::Write as _;

use super::view::{Sorted, View};
use crate::protocol::Column;
use crate::text::html;

/// A heading; one that begins with `#` is over numbers. With a column, it is a link that sorts.
pub type Heading<'a> = (&'a str, Option<Column>);

/// Headings that do not sort.
pub fn plain<'a, const N: usize>(titles: [&'a str; N]) -> [Heading<'a>; N] {
    titles.map(|title| (title, None))
}

/// Opens a section with a table: its id, which people jump to, and its title.
pub fn open(
    out: &mut String,
    (id, title): (&str, &str),
    sorted: Option<(&View, Sorted)>,
    headings: &[Heading<'_>],
) -> std::fmt::Result {
    write!(
        out,
        "<section id=\"{id}\" tabindex=\"-1\"><h2>{title}</h2><div class=\"scroll\" \
         role=\"region\" aria-label=\"{title}\" tabindex=\"0\"><table><tr>"
    )?;
    for (heading, column) in headings {
        let (class, heading) = match heading.strip_prefix('#') {
            Some(heading) => (" class=\"n\"", heading),
            None => ("", *heading),
        };
        let (Some((view, table)), Some(column)) = (sorted, column) else {
            write!(out, "<th scope=\"col\"{class}>{heading}")?;
            continue;
        };
        let order = view.orders.of(table);
        let way = match (order.by == *column, column.is_number() != order.is_reversed) {
            (false, _) => "",
            (true, true) => " aria-sort=\"descending\"",
            (true, false) => " aria-sort=\"ascending\"",
        };
        let address = html(&view.sorted(table, *column));
        write!(out, "<th scope=\"col\"{class}{way}><a href=\"{address}\">{heading}</a>")?;
    }
    Ok(())
}

/// A row: the class and the content of each cell.
pub fn row(out: &mut String, cells: &[(&str, String)]) -> std::fmt::Result {
    out.push_str("<tr>");
    for (class, cell) in cells {
        match *class {
            "" => write!(out, "<td>{cell}")?,
            class => write!(out, "<td class=\"{class}\">{cell}")?,
        }
    }
    Ok(())
}

/// Closes table and section.
pub fn close(out: &mut String) {
    out.push_str("</table></div></section>");
}

/// A bar as SVG: a style attribute would need a policy that allows all inline styles.
pub fn bar(value: f64, most: f64) -> String {
    let width = if most > 0.0 { 100.0 * value / most } else { 0.0 };
    format!(
        "<svg viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" height=\"8\" \
         aria-hidden=\"true\"><rect width=\"100\" height=\"8\" fill=\"var(--bar-ground)\"/><rect \
         width=\"{width:.1}\" height=\"8\" fill=\"var(--bar)\"/></svg>"
    )
}

/// A link to an address of ours.
pub fn link(address: &str, text: &str) -> String {
    format!("<a href=\"{}\">{}</a>", html(address), html(text))
}
