//! Property tests: all ways to write an expression have the same canonical form, and a canonical form is its own.

use proptest::prelude::*;

use crate::answer::latex::{canonical, read, same, tokens};

fn form(text: &str) -> String {
    canonical(text).unwrap_or_else(|| panic!("{text} has a form"))
}

/// Writes an expression in one of several ways; `styles` makes each choice.
fn write(tree: &ExpressionTree, styles: &mut dyn Iterator<Item = u8>) -> String {
    let mut pick = |ways: &[&str]| ways[usize::from(styles.next().unwrap_or(0)) % ways.len()].to_string();
    let space = pick(&["", " ", r"\,", r"\ ", r"\!"]);
    match tree {
        ExpressionTree::Number(number) => {
            let decimal = format!("{number}.0");
            space + &pick(&[&number.to_string(), &decimal, &format!("{{{number}}}")])
        }
        ExpressionTree::Symbol(name) => space + name,
        ExpressionTree::Sum(a, b) => {
            let (open, close) = [("(", ")"), (r"\left(", r"\right)"), (r"\bigl( ", r" \bigr)")]
                [usize::from(styles.next().unwrap_or(0)) % 3];
            let swapped = styles.next().unwrap_or(0) % 2 == 1;
            let (a, b) = (write(a, styles), write(b, styles));
            if swapped { format!("{open}{b}+{a}{close}") } else { format!("{open}{a}+{b}{close}") }
        }
        ExpressionTree::Product(a, b) => {
            let dot = pick(&[r"\cdot ", r"\times ", "*"]);
            format!("{}{space}{dot}{}", write(a, styles), write(b, styles))
        }
        ExpressionTree::Quotient(a, b) => {
            let fraction = pick(&[r"\frac", r"\dfrac", r"\tfrac ", "/"]);
            let (a, b) = (write(a, styles), write(b, styles));
            if fraction == "/" { format!("(({a})/({b}))") } else { format!("({fraction}{{{a}}}{space}{{{b}}})") }
        }
        ExpressionTree::Root(a) => format!(r"\sqrt{space}{{{}}}", write(a, styles)),
    }
}

#[derive(Clone, Debug)]
enum ExpressionTree {
    Number(u32),
    Symbol(&'static str),
    Sum(Box<ExpressionTree>, Box<ExpressionTree>),
    Product(Box<ExpressionTree>, Box<ExpressionTree>),
    Quotient(Box<ExpressionTree>, Box<ExpressionTree>),
    Root(Box<ExpressionTree>),
}

fn tree() -> impl Strategy<Value = ExpressionTree> {
    let symbols = prop::sample::select(vec!["x", "y", r"\pi ", "i", r"\theta "]);
    let leaf = prop_oneof![(0u32..40).prop_map(ExpressionTree::Number), symbols.prop_map(ExpressionTree::Symbol)];
    leaf.prop_recursive(4, 12, 2, |inner| {
        let two = || (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        prop_oneof![
            two().prop_map(|(a, b)| ExpressionTree::Sum(a, b)),
            two().prop_map(|(a, b)| ExpressionTree::Product(a, b)),
            two().prop_map(|(a, b)| ExpressionTree::Quotient(a, b)),
            inner.prop_map(|a| ExpressionTree::Root(Box::new(a))),
        ]
    })
}

/// Random sequences of pieces of LaTeX.
fn soup() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "1",
        "20",
        "300",
        "0.5",
        ",",
        ", ",
        "{,}",
        ".",
        "x",
        "y",
        "ab",
        "sin",
        "and",
        "word",
        " ",
        r"\frac",
        r"\sqrt",
        "^",
        "_",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        r"\{",
        r"\}",
        "+",
        "-",
        "/",
        "=",
        "<",
        r"\le ",
        r"\in ",
        r"\pi",
        r"\text{cm}",
        r"\text{in}",
        r"\text{ million}",
        r"\text{m}",
        r"\text{pi}",
        "cm",
        "no",
        "h",
        "√",
        "²",
        "½",
        r"\text{two words}",
        r"\pm ",
        r"\cup ",
        "|",
        ":",
        r"\circ",
        "$",
        r"\\",
        "&",
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
        r"\,",
        r"\log",
        r"\foo",
        "é",
        r"\overline{3}",
        r"\left",
        r"\infty",
        r"\sin",
        r"\vec",
        ";",
        "%",
        r"\$",
        "e5",
        "e",
        r"\log_2",
        r"\lfloor",
        r"\rfloor",
        r"\sum_{k=1}^n",
        r"\approx ",
        r"\setminus ",
        r"\mathbb{R}",
        r"\degree ",
        ">",
        " or ",
        "f",
        "g",
        "f(",
        "P(A)",
        "'",
        "...",
        r"\vec{AB}",
        "05",
        "–",
        "!",
        "^{(2)}",
        "^{-1}",
        r"\mathbb{F}",
        r"\times ",
        r"\binom",
        r"\emptyset ",
        "dy/dx",
    ]);
    prop::collection::vec(pieces, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_ways_to_write_an_expression_have_one_form(
        tree in tree(),
        one in prop::collection::vec(any::<u8>(), 40),
        other in prop::collection::vec(any::<u8>(), 40),
    ) {
        let text = |styles: Vec<u8>| write(&tree, &mut styles.into_iter());
        let (one, other) = (text(one), text(other));
        let (a, b) = (form(&one), form(&other));
        // With a division by zero or a number beyond 128 bits, the answer's tokens are compared instead.
        prop_assume!(read(&tokens(&one)).is_some());
        prop_assert_eq!(&a, &b, "{} and {}", one, other);
        prop_assert_eq!(form(&a), a.clone(), "{}", one);
        prop_assert!(same(&one, &other), "{} and {}", one, other);
    }

    #[test]
    fn sameness_has_no_order(one in soup(), other in soup()) {
        prop_assert_eq!(same(&one, &other), same(&other, &one), "{} and {}", one, other);
        prop_assert_eq!(same(&one, &one), canonical(&one).is_some() || !tokens(&one).is_empty(), "{}", one);
    }

    #[test]
    fn any_text_is_compared(one in ".{0,40}", other in ".{0,40}") {
        prop_assert_eq!(same(&one, &other), same(&other, &one), "{} and {}", one, other);
    }

    #[test]
    fn a_form_is_its_own_form(soup in soup()) {
        if let Some(once) = canonical(&soup) {
            prop_assert_eq!(form(&once), once, "of {}", soup);
        }
    }
}
