//! What follows from the table of operations is what it says: numbers, what code offers, Python's methods,
//! the matrices of README.md and docs/collectives.md.

use super::*;

/// Every public item with its signature, as `cargo xtask lint` compares it with the code.
const API: &str = include_str!("../../../../xtask/listings/api-symmem.txt");
const STUB: &str = include_str!("../../../symmem-python/python/symmem/_symmem.pyi");
const PACKAGE: &str = include_str!("../../../symmem-python/python/symmem/_collectives.py");
const README: &str = include_str!("../../../../README.md");
const PAGE: &str = include_str!("../../../../docs/collectives.md");

#[test]
fn every_op_is_found_by_its_number() {
    let numbers: Vec<u8> = (0..=u8::MAX).filter(|number| Op::from_u8(*number).is_some()).collect();
    assert_eq!(numbers, (1..=numbers.len() as u8).collect::<Vec<_>>(), "each number once, from 1 on");
    for number in numbers {
        let op = Op::from_u8(number).unwrap();
        assert_eq!((op as u8, op as u64 & SHAPED), (number, 0), "the bit is for shapes");
    }
    assert_eq!(Op::AllGather.label(), "all_gather");
    assert_eq!(Op::AllGatherMemory.label(), "all_gather of memory");
    assert_eq!(Op::PrivateReduceScatter.label(), "reduce_scatter of private memory");
}

#[test]
fn what_is_tuned_is_named_like_its_row() {
    let tuned: Vec<&str> = ROWS.iter().filter_map(|row| row.tuned).map(Collective::name).collect();
    let names: Vec<&str> = ROWS.iter().filter(|row| row.tuned.is_some()).map(|row| row.name).collect();
    assert_eq!(tuned, names);
    assert_eq!(Collective::ALL.map(Collective::name).to_vec(), [names, vec!["private"]].concat());
    for collective in Collective::ALL {
        assert_eq!(serde_json::to_value(collective).unwrap(), collective.name());
        assert_eq!(collective.name().parse::<Collective>().unwrap(), collective);
    }
}

/// Whether users can call `name` of `owner`, by the listing.
fn offers(owner: &str, name: &str) -> bool {
    let head = ["pub fn symmem", owner, name].join("::");
    API.lines().filter_map(|line| line.strip_prefix(&head)).any(|rest| rest.starts_with(['(', '<']))
}

#[test]
fn the_code_offers_what_the_table_says_and_no_more() {
    for row in ROWS {
        let name = row.name;
        assert!(offers("SymmetricMemory<T>", name), "{name}");
        assert_eq!(row.started, offers("Starter<'_, symmem::SymmetricMemory<T>>", name), "{name}");
        assert_eq!(row.devices, offers("SymmetricMemory<T, symmem::Cuda>", name), "{name}");
        // Where the plain name is that of an exchange of one value, elements have another.
        let private = [name.to_owned(), format!("{name}_into")];
        assert_eq!(row.private, private.iter().any(|name| offers("Group", name)), "{name}");
        assert!(!row.root || arguments(name).contains("usize"), "{name}");
        assert_eq!(row.reduces, arguments(name).contains("ReduceOp"), "{name}");
        assert_eq!(row.output == Output::InPlace, !arguments(name).contains("&mut [T]"), "{name}");
        assert_eq!(row.output == Output::Varies, arguments(name).contains("Received"), "{name}");
    }
}

/// The arguments of `name`, and what it returns.
fn arguments(name: &str) -> &'static str {
    let head = ["pub fn symmem", "SymmetricMemory<T>", name].join("::") + "(";
    API.lines().find_map(|line| line.strip_prefix(&head)).unwrap_or_default()
}

/// What the stub has in `class`, up to the next one.
fn class(name: &str) -> &'static str {
    let (_, rest) = STUB.split_once(&format!("\nclass {name}:\n")).expect("a class of the stub");
    rest.split_once("\nclass ").map_or(rest, |(class, _)| class)
}

#[test]
fn python_has_what_the_table_says() {
    let has = |class_name, method: &str| class(class_name).contains(&format!("    def {method}("));
    for row in ROWS {
        let Some(method) = row.python else {
            assert!(!has("SymmetricMemory", row.name) && !has("Group", row.name), "{}", row.name);
            continue;
        };
        assert!(has("SymmetricMemory", method), "{method}");
        assert!(!row.private || has("Group", method), "{method}");
        assert!(!row.private || PACKAGE.contains(&format!("    \"{method}\",\n")), "{method}");
        assert!(!row.started || has("SymmetricMemory", &format!("{method}_start")), "{method}");
    }
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "" }
}

/// Where a collective can be done: host, private memory, CUDA, NCCL, Python.
fn places(row: &CollectiveRow) -> String {
    let python = match row.python {
        Some(method) if method == row.name => "yes".to_owned(),
        method => method.map_or_else(String::new, |method| format!("as `{method}`")),
    };
    ["yes", yes(row.private), yes(row.devices), yes(row.carried), &python].join(" | ")
}

/// Characters of a cell that a reader sees at once.
const WIDEST: usize = 90;

/// README.md's matrix: collectives that can be done in the same places share a line.
fn matrix() -> String {
    let mut lines = vec![
        "| collective | host | private | CUDA | NCCL | Python |".to_owned(),
        "|---|---|---|---|---|---|".to_owned(),
    ];
    let mut groups: Vec<(String, String)> = Vec::new();
    for row in ROWS {
        let (cells, name) = (places(row), format!("`{}`", row.name));
        let has_room = |names: &str| names.len() + name.len() < WIDEST;
        match groups.iter().rposition(|(of, _)| *of == cells) {
            Some(at) if has_room(&groups[at].1) => groups[at].1 += &format!(", {name}"),
            at => groups.insert(at.map_or(groups.len(), |at| at + 1), (cells, name)),
        }
    }
    lines.extend(groups.iter().map(|(cells, names)| format!("| {names} | {cells} |")));
    lines.join("\n")
}

/// The matrix of docs/collectives.md: what each collective is.
fn long_matrix() -> String {
    let mut lines = vec![
        "| collective | a rank gets | started | host | private | CUDA | NCCL | Python | algorithms |"
            .to_owned(),
        "|---|---|---|---|---|---|---|---|---|".to_owned(),
    ];
    for row in ROWS {
        let gets = match row.output {
            Output::InPlace => "the result in place",
            Output::Same => "as much as it gave",
            Output::Share => "its part",
            Output::Whole => "everybody's",
            Output::Varies => "what ranks tell each other",
        };
        let gets = if row.is_to_root() { format!("{gets}, at the root") } else { gets.to_owned() };
        let algorithms = row.tuned.map_or_else(String::new, |tuned| {
            tuned.algorithms().iter().map(|one| one.name()).collect::<Vec<_>>().join(", ")
        });
        let (started, places) = (yes(row.started), places(row));
        lines.push(format!("| `{}` | {gets} | {started} | {places} | {algorithms} |", row.name));
    }
    lines.join("\n")
}

/// What is wrong with the matrix of collectives in `page`, which should be `wanted`.
fn matrix_problem(page: &str, wanted: &str) -> Option<String> {
    let found = page.split("\n\n").find(|part| part.starts_with("| collective |")).unwrap_or_default();
    (found != wanted).then(|| format!("the page must have this table:\n{wanted}"))
}

#[test]
fn pages_have_their_matrix_of_collectives() {
    for (name, page, wanted) in
        [("README.md", README, matrix()), ("docs/collectives.md", PAGE, long_matrix())]
    {
        if let Some(problem) = matrix_problem(page, &wanted) {
            panic!("{name}: {problem}");
        }
    }
}

#[test]
fn a_wrong_cell_of_a_matrix_is_noticed() {
    for matrix in [matrix(), long_matrix()] {
        let right = format!("Text.\n\n{matrix}\n\nMore.");
        assert_eq!(matrix_problem(&right, &matrix), None);
        for (at, _) in matrix.match_indices(" yes ") {
            let at = at + "Text.\n\n".len();
            let planted = format!("{} {}", &right[..at], &right[at + " yes".len()..]);
            assert!(matrix_problem(&planted, &matrix).is_some(), "{}", &right[at..]);
        }
        let more = right.replacen("|  |", "| yes |", 1);
        assert!(more != right && matrix_problem(&more, &matrix).is_some());
    }
}
