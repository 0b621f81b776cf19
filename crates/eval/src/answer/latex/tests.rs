//! Equal and unequal answers, in the notations of MATH's solutions and of samples.

mod apart;
mod properties;
mod same;
mod texts;

use crate::answer::latex::{canonical, same as say_same};
use crate::full::some_or_full;

fn form(text: &str) -> String {
    canonical(text).unwrap_or_else(|| panic!("{text} has a form"))
}

/// Texts that say the same and are one vote.
#[track_caller]
fn equal(texts: &[&str]) {
    one_vote(texts);
    for pair in texts.windows(2) {
        assert!(say_same(pair[0], pair[1]), "{} says the same as {}", pair[0], pair[1]);
    }
}

#[track_caller]
fn one_vote(texts: &[&str]) {
    for pair in texts.windows(2) {
        assert_eq!(form(pair[0]), form(pair[1]), "{} and {}", pair[0], pair[1]);
    }
}

#[track_caller]
fn unequal(texts: &[&str]) {
    for (ix, one) in texts.iter().enumerate() {
        for other in &texts[ix + 1..] {
            assert_ne!(form(one), form(other), "{one} and {other}");
            assert!(!say_same(one, other), "{one} and {other}");
        }
    }
}

#[test]
fn numbers() {
    equal(&[
        r"\frac{1}{2}",
        r"\dfrac12",
        r"\tfrac{1}2",
        r"\frac1{2}",
        "1/2",
        "0.5",
        ".5",
        "0.50",
        r"\frac{-3}{-6}",
        "50/100",
    ]);
    equal(&["-1/2", r"-\frac12", r"\frac{-1}{2}", r"\frac{1}{-2}", "−0.5"]);
    equal(&["32348", r"\$32{,}348", "32,348", r"32,\!348", r"\$ 32,348.00", r"32\,348", r"32, \! 348"]);
    equal(&["7/2", r"3\frac{1}{2}", "3 1/2", r"3 \tfrac12", "3.5"]);
    equal(&["1/3", r"0.\overline{3}", r"0.33\overline{3}"]);
    equal(&["7/12", r"0.58\overline{3}"]);
    equal(&["120000", r"1.2 \times 10^5", r"12\cdot10^{4}", "120,000"]);
    equal(&["120", "5!", r"\binom{10}{3}", r"\left|-120\right|"]);
    equal(&["5", "5.", "$5$", r"\(5\)", "+5", "--5", "{5}", r"\boxed{5}", r"\textbf{5}"]);
    unequal(&["1/2", "1/3", "-1/2", "0.3333", r"0.\overline{3}3", "2", "12", "0"]);
    unequal(&["2516", "2516_8", "2516_7", "1358", "25168"]);
    equal(&["2516_8", "2516_{8}", "2516_{ 8 }"]);
}

#[test]
fn roots_and_constants() {
    equal(&[
        r"\sqrt{12}",
        r"2\sqrt3",
        r"2 \sqrt {3}",
        r"\frac{6}{\sqrt{3}}",
        r"\sqrt{2}\sqrt{6}",
        "2sqrt(3)",
        r"12^{1/2}",
    ]);
    equal(&[r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt{2}}", r"\sqrt{\frac12}", r"\sqrt{0.5}", r"\frac12\sqrt2"]);
    equal(&[r"\frac{1}{1+\sqrt2}", r"\sqrt{2}-1", r"-1+\sqrt2"]);
    equal(&[r"\frac{1}{\sqrt2+\sqrt3+\sqrt5}", r"\frac{2\sqrt3+3\sqrt2-\sqrt{30}}{12}"]);
    equal(&[r"\sqrt[3]{16}", r"2\sqrt[3]{2}", r"16^{\frac13}"]);
    equal(&["-2", r"\sqrt[3]{-8}", r"(-8)^{1/3}"]);
    equal(&[r"\frac{\pi}{2}", r"0.5\pi", r"\frac\pi2", "pi/2", r"\pi/2", "π/2", r"\tfrac{1}{2} \pi"]);
    equal(&["6-5i", "-5i+6", r"\frac{61}{6+5i}", r"6-5\sqrt{-1}"]);
    equal(&["-i", r"\frac{1}{\sqrt{i}\sqrt{i}}", r"\frac{1/\sqrt{i}}{\sqrt{i}}"]);
    equal(&[r"\sqrt2-1", r"\frac{1}{\sqrt{1+\sqrt2}\sqrt{1+\sqrt2}}"]);
    equal(&[r"\frac{3 \sqrt{3}}{4}", r"\frac{3}{4}\sqrt{3}", r"3\sqrt3/4", r"\sqrt{27}/4"]);
    unequal(&[r"\pi", "3.14", r"\frac{22}{7}", r"2\pi", r"\pi^2", r"\frac{1}{\pi}", "p i"]);
    unequal(&[r"\sqrt{2}", r"\sqrt{3}", r"\sqrt[3]{2}", "1.414", "2", r"\sqrt{-2}", r"-\sqrt2", r"\sqrt{2+\sqrt2}"]);
}

#[test]
fn expressions() {
    equal(&["x^2+2x+1", "(x+1)^2", "1 + 2x + x^{2}", "(x+1)(1+x)", "x(x+2)+1", r"x \cdot x + 2 \times x + 1"]);
    equal(&["6r^2-4r-24", "-24-4r+6r^{2}", "2(3r^2 - 2r - 12)"]);
    equal(&[r"\frac{x+2}{7}", r"\frac{1}{7}x+\frac27", "(x+2)/7", r"\dfrac{2x+4}{14}"]);
    equal(&[r"\frac{1}{x+1}", r"\frac{2}{2x+2}", "(x+1)^{-1}", "1/(1+x)"]);
    equal(&[r"\sqrt{x+1}\sqrt{x+1}", "x+1"]);
    equal(&[r"\cot x", r"\cot(x)", r"\cot{x}"]);
    equal(&["2^{n+1}-1", "-1+2^{1+n}"]);
    equal(&["p - q", "-q+p"]);
    equal(&["3ab", "3 b a", r"3\,a\,b"]);
    unequal(&["x^2+1", "x^2-1", "x^2", "x^{21}", "x2", "x_2", "2x^2"]);
    unequal(&[r"\sin x", r"\cos x", r"\sin 2x", r"2\sin x", r"\sin^2 x", r"\sin^{-1} x"]);
    unequal(&["x", "-x", "1/x", r"\sqrt{x}", "|x|", "X"]);
    unequal(&["80!", "81!", "80", "2^{2004}", "2^{2005}", "2^{2005}-1"]);
    equal(&["2^{2005}-1", "-1 + 2^{2005}"]);
}

#[test]
fn equations_and_inequalities() {
    one_vote(&["5", "x=5", "x = 5", "k=5.0", r"\theta=5", r"x_1 = 5", "f(x)=5", r"\text{Area}=5"]);
    equal(&["2x+3", "y=2x+3", "f(x) = 3+2x", "y = 2x+3."]);
    equal(&["2x+3y=6", "4x+6y=12", "-2x-3y+6=0", "3y=6-2x"]);
    equal(&["2x<6", "x<3", "3>x", "x-3<0", "-x>-3", r"x \lt 3"]);
    equal(&[r"1<x\le 3", r"3\geq x>1"]);
    equal(&["[-2,7]", r"x \in [-2,7]", r"x\in[-2, 7]"]);
    unequal(&["x<3", "x>3", r"x\le3", r"x\ge3", r"x\ne3", "3", "x+3=y"]);
    unequal(&["x=1, y=2", "x=2, y=1", "2, 3"]);
    one_vote(&["5", "AB=5", r"AB = 5\text{ cm}", r"\text{AB}=5", r"\text{Area} = 5 \text{ cm}^2"]);
    unequal(&["ABC=5", "5", "2x=5", "AB=5, BC=3", "AB=3, BC=5"]);
}

#[test]
fn tuples_intervals_and_sets() {
    equal(&["(1,2)", "( 1 , 2 )", r"\left( 1, 2 \right)", r"(x,y)=(1,2)", r"\bigl(\frac22,2\bigr)"]);
    equal(&[r"(3, \frac{\pi}{2})", r"\left( 3, \dfrac{\pi}{2} \right)", r"(3,0.5\pi)"]);
    equal(&[r"(-\infty, 2) \cup (3, \infty)", r"\left(3,+\infty\right)\cup\left(-\infty,2\right)"]);
    equal(&[
        "1, 2, -3",
        r"\{2,1,-3\}",
        "-3, 1 and 2",
        r"1, \text{ and } 2,\text{ or } -3",
        "x=1, x=2, x=-3",
        r"1,-3,2",
    ]);
    equal(&[r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}", r"\{1-\sqrt{19},1+\sqrt{19}\}", r"x = 1\mp\sqrt{19}"]);
    equal(&[r"\{1\pm\sqrt{5},-2\}", r"-2,1+\sqrt5,1-\sqrt5"]);
    equal(&["(1,2), (3,4)", "(3,4),(1,2)"]);
    equal(&["4:3", "4 : 3"]);
    equal(&[r"\emptyset", r"\{\}", r"\varnothing"]);
    unequal(&["(1,2)", "[1,2]", "(1,2]", "[1,2)", "(2,1)", "1,2", "(1,2,3)", "12", "(1,3)"]);
    unequal(&[r"\{1,2\}", r"\{1,2,3\}", r"\{1\}", "(1,2)", r"\pm 1"]);
    unequal(&["4:3", "3:4", "4/3"]);
}

#[test]
fn matrices() {
    let column = r"\begin{pmatrix} -2 \\ -14 \\ -7 \end{pmatrix}";
    equal(&[column, r"\begin{bmatrix}-2\\-14\\-7\end{bmatrix}", r"\begin{pmatrix}-2\\-28/2\\-7.0\\\end{pmatrix}"]);
    equal(&[
        r"\begin{pmatrix} 1/5 & 2/5 \\ 0 & \frac12 \end{pmatrix}",
        r"\left[\begin{array}{cc}0.2&0.4\\0&.5\end{array}\right]",
    ]);
    unequal(&[
        column,
        r"\begin{pmatrix} -2 & -14 & -7 \end{pmatrix}",
        r"\begin{pmatrix} -14 \\ -2 \\ -7 \end{pmatrix}",
        "(-2,-14,-7)",
        r"\begin{vmatrix} -2 \\ -14 \\ -7 \end{vmatrix}",
    ]);
}

#[test]
fn fonts_and_colours_say_nothing() {
    equal(&[
        "5",
        r"{\bf 5}",
        r"\boldsymbol{5}",
        r"\mathbf{5}",
        r"\color{red}5",
        r"\textcolor{red}{5}",
        r"\underline{5}",
    ]);
    unequal(&[r"\boldsymbol{5}", r"\boldsymbol{6}", r"\boldsymbol{x}"]);
}

#[test]
fn signs_beyond_ascii_are_latex() {
    equal(&["√2", r"\sqrt2", "√ 2", "√(2)", "2^½"]);
    equal(&["√12", r"2\sqrt{3}", "2√3", "√(4·3)"]);
    equal(&["x²", "x^2", "x¹x"]);
    equal(&["x⁻¹²", "x^{-12}"]);
    equal(&["½", "0.5", "1⁄2"]);
    equal(&["3½", "7/2"]);
    equal(&["∅", r"\emptyset"]);
    unequal(&["√12", "√1·2", "x²", "x³", "x2", "½", "¼", "3½", "3·½"]);
}

#[test]
fn what_is_not_understood_equals_what_is_written_alike() {
    equal(&[r"\int_0^1 x\,dx", r"\int_0^1 x dx", r"\left.\int_0^1 x\;dx\right."]);
    unequal(&[r"\int_0^1 x\,dx", r"\int_0^2 x\,dx", "1/2", "1//2", "1 2", "(1", "1)", "2^{2^{2^{2^{2}}}}", "1/0"]);
    for text in [r"\pi+½1_}", r"\overline{3}\le cm_\{", r"1_\text{cm}20", "x_(", r".\,\overline{3}", r"2\,.~\bar{3}"] {
        assert_eq!(form(&form(text)), form(text), "{text}");
    }
    assert_eq!(canonical(""), None);
    assert_eq!(canonical(r" \, $$ . "), None);
}

#[test]
fn no_answer_is_too_deep_or_too_long() {
    for part in
        ["(", "{", r"\sqrt", r"\frac", r"\sin", "-", "|", r"\{", r"\text{", "x^", "1,", "(x+y+1)^9", "9999999999^"]
    {
        let text = part.repeat(some_or_full(4_000, 20_000));
        assert!(canonical(&text).is_some(), "{part}");
        assert!(canonical(&part.repeat(60)).is_some(), "{part}");
    }
}
