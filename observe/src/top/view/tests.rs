//! Compares drawn screens with the files in `screens/`. `BULKHEAD_BLESS=1` rewrites the files: read the difference before you commit.

use std::path::{Path, PathBuf};

use bolero::check;

use super::super::choices::Choices;
use super::super::keys::Key;
use super::super::picture::{Counted, DenyRates, DropRates, PathRates, PortRates, SessionRates, Traffic, WorkerRates};
use super::super::text::Grapheme;
use super::*;
use crate::admin::Condition;
use crate::args::PortOrder;

/// Returns a picture of a busy node.
pub(super) fn busy() -> Picture {
    let worker = |received: f64, busy| WorkerRates {
        received: Some(received),
        judged: Some(received),
        dropped: Some(received / 2_000.0),
        ns_per_packet: Some(busy * 1e9 / received),
        busy: Some(busy),
        sessions: 6_172,
        restarts: 0,
    };
    let drop = |reason: &str, means: &str, packets: f64, packets_total| DropRates {
        reason: reason.into(),
        means: means.into(),
        counted: Counted { packets: Some(packets), packets_total },
    };
    let deny = |origin: &str, packets: f64, packets_total, not_enforced| DenyRates {
        origin: origin.into(),
        counted: Counted { packets: Some(packets), packets_total },
        not_enforced,
    };
    let port = |name: &str, packets: f64, dropped: u32, sessions| PortRates {
        name: name.into(),
        state: "open".into(),
        traffic: Traffic {
            packets_in: Some(packets),
            packets_out: Some(packets * 0.84),
            bits_in: Some(packets * 760.0),
            bits_out: Some(packets * 9_240.0),
            dropped: Some(dropped.into()),
            dropped_total: u64::from(dropped) * 290,
        },
        sessions: Some(sessions),
    };
    let mut closed = port("shop/batch-28811-7gkqz", 0.0, 0, 0);
    closed.state = "closed".into();
    Picture {
        node: "node-1".into(),
        condition: Condition::Ready,
        uptime_seconds: 11_045,
        generation: 31,
        judged: Some("by acl, where packets leave".into()),
        seconds: Some(1.0),
        total: Traffic {
            packets_in: Some(1_204_000.0),
            packets_out: Some(1_203_400.0),
            bits_in: Some(5.31e9),
            bits_out: Some(5.3e9),
            dropped: Some(58.0),
            dropped_total: 17_341,
        },
        sessions: SessionRates { used: 12_345, capacity: 500_000, created: Some(1_240.0), refused: Some(0.0) },
        path: PathRates { slow: Some(86_400.0), cached: Some(1_117_600.0), cached_share: Some(0.928) },
        workers: vec![worker(61_300.0, 0.38), worker(25_100.0, 0.16)],
        dropped: vec![
            drop("policy_denied", "Policy does not allow the packet.", 55.0, 16_820),
            drop("spoofed_source", "A pod sent with an address that is not its own.", 3.0, 502),
            drop("limited", "They were more than slow_path allows.", 0.0, 19),
        ],
        denied: vec![
            deny("ingress isolated by shop/db", 49.0, 15_003, false),
            deny("shop/web, egress, rule 2", 12.0, 1_817, true),
            deny("egress isolated by payments/default-deny", 6.0, 1_817, false),
        ],
        ports: vec![
            port("uplink", 604_000.0, 0, 9_811),
            port("shop/web-7d9f8c6b5-x2k4q", 311_000.0, 49, 5_020),
            port("shop/db-0", 198_000.0, 0, 4_117),
            port("payments/api-5c7b9d8f6-qv8lm", 84_100.0, 6, 2_240),
            port("host", 5_300.0, 0, 112),
            port("monitoring/prometheus-0", 1_270.0, 0, 96),
            port("shop/cache-0", 420.0, 0, 31),
            closed,
        ],
        ..Picture::default()
    }
}

/// Returns a picture with extreme values: long and non-ASCII names, escape sequences, and figures of all sizes.
fn awkward() -> Picture {
    let mut picture = busy();
    picture.node = "node\u{1b}[2J-".repeat(20);
    let name = format!("{}/{}", "n".repeat(63), "p".repeat(253));
    picture.ports = (0..250).map(|at| PortRates { name: format!("{name}-{at}"), ..picture.ports[0].clone() }).collect();
    picture.ports.iter_mut().for_each(|port| port.traffic.packets_in = Some(1e18));
    picture.ports[1].name = "日本語/ポッド\r\n".into();
    picture.total.bits_in = Some(f64::MAX);
    picture.sessions = SessionRates { used: u64::MAX, capacity: 0, created: None, refused: Some(1e-9) };
    picture.workers = vec![WorkerRates::default(); 64];
    picture.denied[0].origin = "ingress isolated by ".to_owned() + &"x/y, ".repeat(400);
    picture
}

fn choices() -> Choices {
    Choices::new(PortOrder::Packets, "")
}

/// Returns the lines of a screen of this size. Asserts that they fit.
pub(super) fn drawn(scene: Scene<'_>, width: u16, height: u16) -> Vec<Line> {
    let lines = draw(scene, (width, height));
    assert_eq!(lines.len(), usize::from(height));
    for line in &lines {
        assert_eq!(text_of(line.visible(width.into())).trim_end(), text_of(line.visible(usize::MAX)).trim_end());
    }
    lines
}

fn text_of<'a>(graphemes: impl Iterator<Item = Grapheme<'a>>) -> String {
    graphemes.map(|grapheme| grapheme.symbol).collect()
}

fn rows(lines: &[Line]) -> Vec<String> {
    lines.iter().map(|line| text_of(line.visible(usize::MAX)).trim_end().to_owned()).collect()
}

fn scene<'a>(picture: &'a Picture, choices: &'a Choices) -> Scene<'a> {
    Scene { picture, choices, interval: Duration::from_secs(1), away: None }
}

/// Asserts that the text equals a file in this folder.
fn compare(name: &str, text: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/view/screens").join(name);
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "{name} is not what is drawn; BULKHEAD_BLESS=1 writes it:\n{text}");
}

#[test]
fn screens_of_all_sizes_are_drawn_as_they_were_looked_at() {
    let (busy, awkward) = (busy(), awkward());
    let choices = choices();
    for (name, picture, (width, height)) in [
        ("usual.txt", &busy, (80, 24)),
        ("wide.txt", &busy, (140, 36)),
        ("small.txt", &busy, (60, 15)),
        ("tiny.txt", &busy, (30, 6)),
        ("awkward.txt", &awkward, (100, 40)),
    ] {
        compare(name, &(rows(&drawn(scene(picture, &choices), width, height)).join("\n") + "\n"));
    }
}

#[test]
fn special_screens_are_drawn_as_they_were_looked_at() {
    let mut first = busy();
    (first.seconds, first.note) = (None, Some("the vswitch was restarted: rates come with the next interval"));
    first.total = Traffic { dropped_total: 3, ..Traffic::default() };
    let idle = Picture { node: "node-1".into(), condition: Condition::Denying, ..Picture::default() };
    let mut kernel = busy();
    (kernel.in_kernel, kernel.judged) = (true, Some("by nftables, in the node's kernel".into()));
    (kernel.workers, kernel.sessions) = (Vec::new(), SessionRates::default());
    kernel.ports.iter_mut().for_each(|port| (port.traffic.dropped, port.sessions) = (None, None));
    let mut typing = Choices::new(PortOrder::Drops, "");
    for key in "/shop".chars() {
        typing.press(Key::Char(key), 8);
    }
    let mut helping = choices();
    helping.press(Key::Char('?'), 8);
    let mut paused = Choices::new(PortOrder::Name, "nobody");
    paused.press(Key::Char(' '), 0);
    let away = Some("cannot reach a vswitch at /run/bulkhead/admin.sock: No such file or directory (os error 2)");
    let usual = choices();
    for (name, scene) in [
        ("restarted.txt", scene(&first, &usual)),
        ("idle.txt", scene(&idle, &usual)),
        ("kernel.txt", scene(&kernel, &usual)),
        ("typing.txt", scene(&busy(), &typing)),
        ("help.txt", scene(&busy(), &helping)),
        ("paused.txt", scene(&busy(), &paused)),
        ("away.txt", Scene { away, ..scene(&busy(), &usual) }),
    ] {
        compare(name, &(rows(&drawn(scene, 80, 24)).join("\n") + "\n"));
    }
}

#[test]
fn at_80_columns_nothing_of_the_totals_and_of_the_help_is_cut() {
    let (busy, usual) = (busy(), choices());
    let mut kernel = busy.clone();
    kernel.in_kernel = true;
    let mut helping = choices();
    helping.press(Key::Char('?'), 8);
    for (picture, choices, lines) in [(&busy, &usual, 1..4), (&kernel, &usual, 1..3), (&busy, &helping, 1..24)] {
        let rows = rows(&drawn(scene(picture, choices), 80, 24));
        assert!(rows[lines].iter().all(|row| !row.contains('…')), "{rows:#?}");
    }
}

#[test]
fn the_end_of_a_long_filter_is_there_while_it_is_typed() {
    let mut typing = Choices::new(PortOrder::Packets, &format!("payments/{}-qv8lm", "x".repeat(200)));
    typing.press(Key::Char('/'), 8);
    for width in [40, 80] {
        let rows = rows(&drawn(scene(&busy(), &typing), width, 24));
        assert!(rows[23].contains("8lm▏"), "{rows:#?}");
    }
}

#[test]
fn plain_text_has_all_of_it() {
    compare("plain.txt", &(text(&busy(), &choices()).join("\n") + "\n"));
}

#[test]
fn whatever_the_size_nothing_panics_and_the_ports_and_the_drops_are_there_when_there_is_room() {
    let pictures = [busy(), awkward(), Picture::default()];
    check!().with_type::<(u8, u8, u8, u16)>().for_each(|&(width, height, which, first)| {
        let mut choices = choices();
        choices.first = first.into();
        let picture = &pictures[usize::from(which) % pictures.len()];
        let (width, height) = (u16::from(width).max(1), u16::from(height).max(1));
        let rows = rows(&drawn(scene(picture, &choices), width, height));
        assert!(rows.iter().all(|row| !row.contains('\u{1b}')));
        if width >= 60 && height >= 15 {
            assert!(
                rows.iter().any(|row| row.contains("PORT")) && rows.iter().any(|row| row.contains("DROPPED, BY")),
                "{rows:#?}"
            );
        }
    });
}

/// The property test above found this: the meanings left 20 columns for a heading of 27.
#[test]
fn at_88_columns_and_15_rows_the_heading_of_the_drops_is_whole() {
    let rows = rows(&drawn(scene(&busy(), &choices()), 88, 15));
    assert!(rows.iter().any(|row| row.contains("DROPPED, BY REASON (1 of 3)")), "{rows:#?}");
}

#[test]
fn the_room_is_shared_out_and_never_more_than_there_is() {
    check!().with_type::<(u8, u8, u8, u8, bool, bool)>().for_each(
        |&(room, workers, drops, ports, is_wide, has_spaces)| {
            let picture = Picture {
                workers: vec![WorkerRates::default(); workers.into()],
                dropped: vec![DropRates::default(); drops.into()],
                denied: vec![DenyRates::default(); (drops / 2).into()],
                ..Picture::default()
            };
            let spaces = usize::from(has_spaces);
            let shares = shares(&picture, ports.into(), room.into(), is_wide, spaces);
            let part = |rows: usize| if rows > 0 { rows + 1 + spaces } else { 0 };
            let drops = if is_wide { part(shares.reasons) } else { part(shares.reasons) + part(shares.origins) };
            let used = part(shares.workers) + drops + part(shares.ports);
            assert!(used <= usize::from(room), "{shares:?}");
        },
    );
}

#[test]
fn scrolled_to_the_end_the_last_ports_fill_the_screen() {
    let picture = awkward();
    let mut choices = choices();
    choices.press(Key::End, 250);
    let rows = rows(&drawn(scene(&picture, &choices), 80, 24));
    assert!(rows.iter().any(|row| row.contains("of 250)")), "{rows:#?}");
    assert!(rows[22].contains("-249"), "{rows:#?}");
}
