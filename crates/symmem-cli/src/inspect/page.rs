//! Groups as people read them: a sentence, then a table of ranks.

use symmem::inspect::{GroupState, Life, RankState, Snapshot, time};

use crate::screen::{self, Tone, paint};

/// How much of an id is shown: enough to tell groups apart, and to ask for one.
const SHORT_ID: usize = 8;

/// What `snapshot` shows of the groups that were `chosen` for `job`.
pub(super) fn text(snapshot: &Snapshot, chosen: &[&GroupState], job: Option<&str>) -> String {
    let mut parts: Vec<String> = chosen.iter().map(|group| group_text(group)).collect();
    if chosen.is_empty() {
        parts.push(match job {
            None => "No group of this user runs on this machine.".to_owned(),
            Some(job) => format!("No group {job:?} runs on this machine."),
        });
    }
    let notes = [
        (
            snapshot.unreadable,
            "of this user may not be looked at (ptrace limits, or another container)",
            "process",
            "processes",
        ),
        (
            snapshot.other_versions,
            "another version of symmem, which this program cannot read",
            "rank has",
            "ranks have",
        ),
    ];
    for (count, what, one, many) in notes.into_iter().filter(|(count, ..)| *count > 0) {
        let noun = if count == 1 { one } else { many };
        parts.push(paint(Tone::Quiet, &format!("{count} {noun} {what}")));
    }
    parts.join("\n\n")
}

fn group_text(group: &GroupState) -> String {
    let ranks = if group.world == 1 { "1 rank".to_owned() } else { format!("{} ranks", group.world) };
    let title = format!(
        "{} {}",
        paint(Tone::Strong, &group.name),
        paint(
            Tone::Quiet,
            &format!(
                "({ranks}, made {} ago, id {})",
                time(group.made),
                &group.id[..group.id.floor_char_boundary(SHORT_ID)]
            )
        )
    );
    let mut table = screen::table(&["rank", "pid", "state", "operation", "since", "waits for"]);
    for rank in &group.ranks {
        table.add_row(cells(group, rank));
    }
    let mut lines = vec![title, sentence(group), table.to_string()];
    lines.extend(devices(group));
    lines.join("\n")
}

/// What is the matter, in lines that fit.
fn sentence(group: &GroupState) -> String {
    let lines = wrap(&group.explain(), screen::width());
    lines.iter().map(|line| paint(tone(group), line)).collect::<Vec<_>>().join("\n")
}

/// `text` in lines of at most `width`, as far as its words allow.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn tone(group: &GroupState) -> Tone {
    match (&group.failure, group.is_stuck()) {
        (Some(_), _) => Tone::Bad,
        (None, true) => Tone::Doubtful,
        (None, false) => Tone::Good,
    }
}

fn cells(group: &GroupState, rank: &RankState) -> [String; 6] {
    let unknown = || "-".to_owned();
    let wait = rank.waiting.as_ref();
    [
        rank.rank.to_string(),
        rank.pid.map_or_else(unknown, |pid| pid.to_string()),
        state(group, rank),
        rank.operation.as_ref().map_or_else(unknown, ToString::to_string),
        wait.map_or_else(unknown, |wait| time(wait.since)),
        wait.map_or_else(unknown, |wait| ranges(&wait.ranks)),
    ]
}

/// Whether the rank lives, and whether it is to blame: for waits of a moment nobody is.
fn state(group: &GroupState, rank: &RankState) -> String {
    let (text, tone) = match rank.life {
        Life::Running | Life::Sleeping => ("alive", Tone::Good),
        Life::Stopped => ("stopped", Tone::Doubtful),
        Life::Dead => ("dead", Tone::Bad),
        Life::Left => ("left", Tone::Quiet),
        Life::Elsewhere => ("elsewhere", Tone::Quiet),
        _ => ("unknown", Tone::Quiet),
    };
    let is_to_blame = group.culprits.contains(&rank.rank) && (group.is_stuck() || group.failure.is_some());
    match is_to_blame {
        true => paint(Tone::Bad, &format!("{text}, culprit")),
        false => paint(tone, text),
    }
}

/// What ranks have launched on their GPUs, if they have some.
fn devices(group: &GroupState) -> Option<String> {
    let mut table = screen::table(&["rank", "GPU", "lane", "launches", "last", "ago", "state"]);
    for rank in &group.ranks {
        for device in &rank.devices {
            let state = match (&device.failure, device.is_aborted) {
                (Some(failure), _) => {
                    let text = format!(
                        "failed: rank {} {} (epoch {})",
                        failure.culprit, failure.cause, failure.epoch
                    );
                    paint(Tone::Bad, &text)
                }
                (None, true) => paint(Tone::Bad, "ended"),
                (None, false) => paint(Tone::Good, "whole"),
            };
            for (lane, launched) in device.lanes.iter().enumerate() {
                table.add_row([
                    rank.rank.to_string(),
                    device.device.to_string(),
                    lane.to_string(),
                    launched.launches.to_string(),
                    launched.last.unwrap_or("-").to_owned(),
                    launched.ago.map_or_else(|| "-".to_owned(), time),
                    state.clone(),
                ]);
            }
        }
    }
    (!table.is_empty()).then(|| table.to_string())
}

/// Ascending numbers, neighbours drawn together: `0-2, 5`.
fn ranges(ranks: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => parts.push((*rank, *rank)),
        }
    }
    let text = |(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_drawn_together() {
        assert_eq!(ranges(&[2]), "2");
        assert_eq!(ranges(&[0, 1, 5]), "0, 1, 5");
        assert_eq!(ranges(&[0, 1, 2, 3, 7, 9, 10, 11]), "0-3, 7, 9-11");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn sentences_are_wrapped_between_words() {
        assert_eq!(wrap("rank 1 is stopped", 9), ["rank 1 is", "stopped"]);
        assert_eq!(wrap("unbreakable words", 3), ["unbreakable", "words"]);
        assert_eq!(wrap("", 9), [""; 0]);
    }

    #[test]
    fn nothing_to_see_is_a_sentence() {
        let snapshot = symmem::inspect::snapshot().unwrap();
        assert!(text(&snapshot, &[], None).starts_with("No group of this user runs on this machine."));
        assert!(text(&snapshot, &[], Some("train")).starts_with("No group \"train\" runs"));
    }
}
