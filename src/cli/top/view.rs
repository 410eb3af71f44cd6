//! The screen of `sumfs top`, as styled lines: a terminal shows them as they are, anything else their text.

use super::sample::{Between, Sample, members, number};
use crate::cli::info::show_bytes;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use serde_json::Value;

/// Cells of a bar.
const BAR_CELLS: usize = 20;
/// Operations that are named.
const NAMED_MAX: usize = 5;

const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const GOOD: Style = Style::new().fg(Color::Green);
const WARNING: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// What happened between two samples, and what is.
pub fn screen(between: &Between<'_>) -> Vec<Line<'static>> {
    let mut lines = title(between);
    lines.extend([requests(between), data_moved(between)]);
    lines.extend(fast_path(between));
    lines.extend(fullness(between.now));
    lines.push(Line::default());
    lines.extend(latencies(between));
    lines.push(Line::default());
    lines.extend(device_errors(between.now));
    lines.push(scrub(&between.now.scrub));
    lines
}

/// The same without a terminal.
pub fn as_text(lines: &[Line<'_>]) -> String {
    lines.iter().map(|line| format!("{}\n", line.to_string().trim_end())).collect()
}

fn label(name: &str) -> Span<'static> {
    Span::styled(format!("{name:<11}"), STRONG)
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn bytes(bytes: f64) -> String {
    show_bytes(bytes as u64)
}

/// A rate, with as many digits as mean something.
fn per_second(rate: f64) -> String {
    if rate >= 100.0 || rate == 0.0 { format!("{rate:.0}/s") } else { format!("{rate:.1}/s") }
}

fn title(between: &Between<'_>) -> Vec<Line<'static>> {
    let info = &between.now.info;
    let place = format!("{} on {}", text(info, "mountpoint"), text(info, "store"));
    let who = format!("  sumfs {}, pid {}, {:.1} s", text(info, "version"), number(info, "pid"), between.seconds());
    let mut lines = vec![Line::from(vec![Span::styled(place, STRONG), Span::styled(who, DIM)])];
    if let Some(reason) = info.get("read_only_reason").and_then(Value::as_str) {
        lines.push(Line::styled(format!("READ-ONLY: {reason}"), BAD));
    }
    lines.push(Line::default());
    lines
}

fn requests(between: &Between<'_>) -> Line<'static> {
    let busiest = between.busiest("counters/operations");
    let all = busiest.iter().map(|(_, rate)| rate).fold(0.0, |sum, rate| sum + rate);
    let named = busiest.iter().take(NAMED_MAX).map(|(name, rate)| format!("   {name} {}", per_second(*rate)));
    Line::from(vec![label("requests"), per_second(all).into(), named.collect::<String>().into()])
}

fn data_moved(between: &Between<'_>) -> Line<'static> {
    let rate = |name: &str| between.rate(&format!("counters/io/{name}"));
    let moved = format!(
        "read {}/s   written {}/s   device flushes {}",
        bytes(rate("bytes_read")),
        bytes(rate("bytes_written")),
        per_second(rate("device_flushes"))
    );
    Line::from(vec![label("data"), moved.into()])
}

fn fast_path(between: &Between<'_>) -> [Line<'static>; 2] {
    let mut shares = vec![label("fast path")];
    for (name, fast, all) in [("reads", "fast_reads", "read"), ("writes", "fast_writes", "write")] {
        let share = between.share(&format!("counters/requests/{fast}"), &format!("counters/operations/{all}"));
        shares.push(format!("{name} ").into());
        match share {
            Some(share) => shares.extend([bar(share, GOOD), format!(" {:3.0} %   ", share * 100.0).into()]),
            None => shares.push(Span::styled("none   ", DIM)),
        }
    }
    let refused = between.busiest("counters/refused");
    let refused = refused.iter().map(|(name, rate)| format!("{name} {}   ", per_second(*rate))).collect::<String>();
    let refused = if refused.is_empty() { Span::styled("nothing", DIM) } else { refused.into() };
    [Line::from(shares), Line::from(vec![label("  refused"), refused])]
}

fn bar(part: f64, style: Style) -> Span<'static> {
    let full = (part.clamp(0.0, 1.0) * BAR_CELLS as f64).round() as usize;
    Span::styled(format!("[{}{}]", "#".repeat(full), "-".repeat(BAR_CELLS - full)), style)
}

/// Green, and not where it is nearly full.
fn filled(used: f64, size: f64) -> Span<'static> {
    let part = if size > 0.0 { used / size } else { 0.0 };
    bar(part, if part < 0.8 { GOOD } else { WARNING })
}

fn fullness(now: &Sample) -> [Line<'static>; 4] {
    let stat = |path: &str| number(&now.stats, path);
    let row = |name: &str, used: f64, size: f64, more: String| {
        let amount = format!(" {} of {}{more}", bytes(used), bytes(size));
        Line::from(vec![label(name), filled(used, size), amount.into()])
    };
    let (hits, misses) = (stat("counters/cache/cache_hits"), stat("counters/cache/cache_misses"));
    let hits = if hits + misses > 0.0 { format!("   hits {:.0} %", hits / (hits + misses) * 100.0) } else { String::new() };
    let cached = format!("{} of data, {} inodes{hits}", bytes(stat("cache/total_bytes")), stat("cache/inodes_cached"));
    let pending = format!(", {} records not applied", stat("metadata/pending_records"));
    [
        Line::from(vec![label("cache"), cached.into()]),
        row("dirty", stat("cache/dirty_bytes"), stat("cache/dirty_bytes_max"), String::new()),
        row("journal", stat("metadata/journal_used_bytes"), stat("metadata/journal_bytes"), pending),
        row("space", number(&now.info, "used_bytes"), number(&now.info, "size_bytes"), String::new()),
    ]
}

fn time(microseconds: f64) -> String {
    match microseconds {
        us if us < 1_000.0 => format!("{us:.0} us"),
        us if us < 1_000_000.0 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

fn latencies(between: &Between<'_>) -> Vec<Line<'static>> {
    const GROUP: &str = "counters/latency";
    let head = format!("{:<11}{:>10}{:>12}{:>12}{:>12}", "latency", "rate", "p50", "p99", "most");
    let mut lines =
        vec![Line::from(vec![Span::styled(head, STRONG), Span::styled("   (percentiles since it was mounted)", DIM)])];
    for (name, _) in members(&between.now.stats, GROUP) {
        let at = |field: &str| time(number(&between.now.stats, &format!("{GROUP}/{name}/{field}")));
        let rate = per_second(between.rate(&format!("{GROUP}/{name}/count")));
        let name = format!("  {}", name.replace('_', " "));
        lines.push(format!("{name:<11}{rate:>10}{:>12}{:>12}{:>12}", at("p50_us"), at("p99_us"), at("max_us")).into());
    }
    lines
}

fn device_errors(now: &Sample) -> Vec<Line<'static>> {
    const COUNTED: [&str; 4] = ["read_errors", "write_errors", "checksum_errors", "repaired_blocks"];
    let head = format!("{:<21}{:>12}{:>12}{:>12}{:>12}", "device errors", "read", "write", "checksum", "repaired");
    let mut lines = vec![Line::styled(head, STRONG)];
    let paths = now.info.get("devices").and_then(Value::as_array);
    for (place, device) in now.stats.get("devices").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let path = paths.and_then(|paths| paths.get(place)).map(|device| text(device, "path")).unwrap_or_default();
        let counts = COUNTED.map(|name| number(device, name));
        let cells = counts.iter().map(|count| format!("{count:>12}")).collect::<String>();
        let style = if counts.iter().any(|count| *count > 0.0) { BAD } else { Style::new() };
        let name = format!("  {} {path}", number(device, "id"));
        lines.push(Line::styled(format!("{name:<21}{cells}"), style));
    }
    lines
}

fn scrub(scrub: &Value) -> Line<'static> {
    let state = text(scrub, "state").to_owned();
    let mut spans = vec![label("scrub"), state.clone().into()];
    if state == "running" || state == "paused" {
        let (done, total) = (number(scrub, "bytes_done"), number(scrub, "bytes_total"));
        spans.extend([" ".into(), bar(if total > 0.0 { done / total } else { 0.0 }, GOOD)]);
        let left =
            scrub.get("seconds_left").and_then(Value::as_f64).map(|left| format!(", {left:.0} s left")).unwrap_or_default();
        spans.push(format!(" {} of {}, {}/s{left}", bytes(done), bytes(total), bytes(number(scrub, "bytes_per_second"))).into());
    }
    let damaged = number(scrub, "bad_blocks") + number(scrub, "damaged_values");
    if damaged > 0.0 {
        let found = format!("   {damaged} damaged, {} repaired", number(scrub, "repaired_blocks"));
        spans.push(Span::styled(found, BAD));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::pair;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::widgets::Paragraph;

    const EXPECTED: &str = "\
/mnt/data on /srv/store  sumfs 0.1.0, pid 7, 2.0 s
READ-ONLY: a flush failed

requests   1100/s   read 1000/s   write 100/s
data       read 10.0 MiB/s   written 3.0 MiB/s   device flushes 4.0/s
fast path  reads [###############-----]  75 %   writes [####################] 100 %
  refused  not_cached 250/s
cache      3.0 MiB of data, 0 inodes   hits 75 %
dirty      [#####---------------] 24.0 MiB of 96.0 MiB
journal    [#####---------------] 8.0 MiB of 32.0 MiB, 7 records not applied
space      [#####---------------] 1.0 GiB of 4.0 GiB

latency          rate         p50         p99        most   (percentiles since it was mounted)
  fsync         5.0/s      900 us     12.0 ms       2.0 s

device errors                read       write    checksum    repaired
  0 device.0                    2           0           1           1
scrub      running [#####---------------] 1.0 GiB of 4.0 GiB, 200.0 MiB/s, 16 s left   1 damaged, 1 repaired
";

    #[test]
    fn text_and_terminal_show_the_same() {
        let (before, now) = pair();
        let lines = screen(&Between { before: &before, now: &now });
        assert_eq!(as_text(&lines), EXPECTED);
        let mut terminal = Terminal::new(TestBackend::new(120, 20)).unwrap();
        terminal.draw(|frame| frame.render_widget(Paragraph::new(lines.clone()), frame.area())).unwrap();
        let shown = format!("{}", terminal.backend());
        for line in EXPECTED.lines() {
            assert!(shown.contains(line), "{line:?} is not in\n{shown}");
        }
        let reason = &terminal.backend().buffer()[(0, 1)];
        assert_eq!(reason.style().fg, Some(Color::Red), "what is bad is red");
    }

    #[test]
    fn nothing_known_is_no_panic() {
        let (mut before, _) = pair();
        (before.stats, before.scrub, before.info) = (Value::Null, Value::Null, Value::Null);
        assert!(as_text(&screen(&Between { before: &before, now: &before })).contains("fast path  reads none"));
    }
}
