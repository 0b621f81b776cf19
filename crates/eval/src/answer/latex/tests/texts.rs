//! Texts and units after a value: which are dropped, and which change the answer.

use crate::answer::latex::tests::{equal, form, one_vote, unequal};

#[test]
fn units_percent_degrees_and_money_are_dropped() {
    one_vote(&[
        "10",
        r"10^\circ",
        r"10^{\circ}",
        "10°",
        r"10\%",
        "10%",
        r"\$10",
        "£10",
        "€10",
        "10¢",
        r"10\cent",
        r"10\text{ cm}",
        r"10\mbox{ cm}^2",
        "10 degrees",
        r"10^{\circ}\mathrm{C}",
        r"10^\circ\text{F}",
        r"10{\rm cm}",
        r"10\text{ (cm)}",
        r"10\,\mathrm{m}",
        r"10\,\mathrm{m}/\mathrm{s}^2",
    ]);
    one_vote(&[
        "5.4",
        r"5.40 \text{ cents}",
        r"5.4\text{ft/s}",
        "5.4 sq feet",
        "5.4 square units",
        r"5.4\,\text{sq. in.}",
    ]);
    one_vote(&[
        "9.8",
        r"9.8\text{ m/s}^2",
        r"9.8 \text{ m/s}^{2}",
        r"9.8\ \text{m}\cdot\text{s}^{-2}",
        r"9.8\frac{\text{m}}{\text{s}}",
    ]);
    one_vote(&["5", "5 km/h", "5 day", "5 weeks", "5 sq. units", r"5\text{ dollars per hour}", r"5\text{ cubic feet}"]);
    one_vote(&[r"8\pi", r"8\pi\text{ square units}", r"8\pi\ \text{units}^3"]);
    equal(&["x", r"x\text{ cm}"]);
    equal(&["2, 3", r"2\text{ cm}, 3\text{ cm}", r"2\text{ and }3\text{ cm}"]);
    unequal(&[r"10\%", "0.1", "10x", "10 c m"]);
}

#[test]
fn a_noun_behind_the_one_value_is_dropped() {
    one_vote(&[
        "5",
        r"5 \text{ apples}",
        r"5\text{ ways to choose}",
        r"\text{5 pieces of candy}",
        r"x=5\text{ apples}",
    ]);
    unequal(&[
        "5",
        "6",
        r"5\text{ mod }7",
        r"5\text{ remainder }2",
        r"5\text{ thirds}",
        r"5\text{ fewer}",
        r"5\text{ east}",
    ]);
    unequal(&[r"n\text{ is even}", r"n\text{ is odd}", "n"]);
    unequal(&[r"1\text{ if }x>0", "1", r"1\text{ if }x<0"]);
}

#[test]
fn several_values_with_their_texts_are_compared_token_by_token() {
    for (one, other) in [
        (r"2 \text{ hr } 30 \text{ min}", r"3 \text{ hr } 20 \text{ min}"),
        (r"2 \text{ hours } 30 \text{ minutes}", r"3 \text{ hours } 20 \text{ minutes}"),
        ("2 hours 30 minutes", "3 hours 20 minutes"),
        ("2 h 30 min", "3 h 20 min"),
        ("2h30m", "3h20m"),
        (r"5 \text{ ft } 6 \text{ in}", r"6 \text{ ft } 5 \text{ in}"),
        ("5 ft 6 in", "6 ft 5 in"),
        (r"5\text{ to }3", r"3\text{ to }5"),
        (r"5\text{ of }3", r"3\text{ of }5"),
        (r"3 \text{ apples and } 2 \text{ pears}", r"2 \text{ apples and } 3 \text{ pears}"),
        (r"3 \text{ red}, 2 \text{ blue}", r"2 \text{ red}, 3 \text{ blue}"),
        (r"3 \text{ ft}, 2 \text{ in}", r"2 \text{ ft}, 3 \text{ in}"),
        (r"(3 \text{ ft}, 2 \text{ in})", r"(3 \text{ in}, 2 \text{ ft})"),
    ] {
        unequal(&[one, other]);
        assert_eq!(form(&form(one)), form(one), "{one}");
    }
    equal(&[r"2 \text{ hr } 30 \text{ min}", r"2\text{ hr}\ 30\,\text{min.}"]);
}

#[test]
fn times_dates_and_number_words_are_kept() {
    equal(&[r"4:30 \text{ p.m.}", r"\text{4:30 p.m.}", r"4:30\text{ PM}", "4:30 p.m.", "4:30 PM"]);
    unequal(&[r"10\text{ a.m.}", r"10\text{ p.m.}", "10", "10m"]);
    equal(&[r"\text{June 20}", "June 20"]);
    equal(&[r"\text{20 June}", "20 June", r"20\text{ June}"]);
    unequal(&[r"20\text{ June}", r"20\text{ May}", "20", r"\text{June 20}"]);
    equal(&[r"5\text{ million}", "5 million", "5000000", r"\$5\text{ million dollars}"]);
    unequal(&[r"5\text{ thousand}", r"5\text{ million}", "5"]);
    unequal(&[r"50^\circ\text{ N}", r"50^\circ\text{ S}", "50"]);
    equal(&[r"50^\circ\text{N}", r"50^\circ N"]);
}

#[test]
fn words() {
    equal(&[r"\text{Evelyn}", "Evelyn", "evelyn", r"\textbf{Evelyn}", r"\mathrm{Evelyn}", r" \text{ Evelyn. }"]);
    equal(&[r"\text{(C)}", "C", "(C)", r"\text{C}", r"\textbf{(C)}"]);
    equal(&[r"\text{Alice and Bob}", r"\text{Bob}, \text{Alice}"]);
    equal(&[r"\text{No}", "no", "NO", r"\text{no}."]);
    equal(&[r"\text{IV}", "IV", "iv"]);
    unequal(&[r"\text{IV}", r"\text{VI}", r"\text{II}", "-1", "I^2"]);
    unequal(&[r"\text{on}", r"\text{no}", "o n"]);
    unequal(&[r"\text{even}", r"\text{odd}", r"\text{neither}", r"\text{never}", "e"]);
    unequal(&[r"\text{(A)}", r"\text{(B)}", r"\text{June 20}", r"\text{June 2}", r"\text{May 20}"]);
    for text in [r"\text{on}", r"\text{to be}", r"\text{theta}", r"\text{no}", r"\text{a cat}", r"\text{log in}"] {
        assert_eq!(form(&form(text)), form(text), "{text}");
    }
}
