//! What ranks write, and what is seen of it.

use super::{begun, ranks, sorted, until};
use crate::program::{TempFolder, symmem};

#[test]
fn lines_are_whole_and_have_their_rank_before_them() {
    let script = r#"i=0; while [ $i -lt 200 ]; do echo "$RANK of a line"; echo "$RANK complains" >&2; i=$((i+1)); done; printf last"#;
    let outcome = ranks("4", &[], script).ok();
    assert_eq!((outcome.stdout.lines().count(), outcome.stderr.lines().count()), (804, 800));
    let count = |text: &str, line: String| text.lines().filter(|other| **other == line).count();
    for rank in 0..4 {
        assert_eq!(count(&outcome.stdout, format!("[{rank}] {rank} of a line")), 200);
        assert_eq!(count(&outcome.stdout, format!("[{rank}] last")), 1);
        assert_eq!(count(&outcome.stderr, format!("[{rank}] {rank} complains")), 200);
    }
}

#[test]
fn one_rank_writes_by_itself_unless_asked_otherwise() {
    assert_eq!(ranks("1", &[], "printf plain").ok().stdout, "plain");
    assert_eq!(ranks("1", &["--prefix"], "echo plain").ok().stdout, "[0] plain\n");
    assert_eq!(ranks("2", &["--no-prefix"], "echo plain").ok().stdout, "plain\nplain\n");
}

#[test]
fn ranks_have_colours_where_output_has() {
    let outcome = symmem(&["run", "-n", "2", "--", "echo", "plain"], &[("CLICOLOR_FORCE", "1")]).ok();
    assert!(outcome.stdout.contains("\u{1b}["), "{:?}", outcome.stdout);
}

#[test]
fn the_begin_of_a_line_is_shown_after_a_while() {
    let folder = TempFolder::new("begun");
    let script = r#"printf "name? "; while [ ! -e $DIR/go ]; do sleep 0.05; done; echo; echo done"#;
    let running = begun("2", &[], &folder, script);
    until("both questions", || running.stdout().matches("name? ").count() == 2);
    folder.write("go", "");
    let said = running.end().ok().stdout;
    assert_eq!(sorted(&said), ["[0] done", "[0] name? ", "[1] done", "[1] name? "]);
}
