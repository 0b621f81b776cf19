//! Answers that say the same and answers that do not, by kind, compared in both orders.

use crate::answer::latex::{canonical, same};

#[track_caller]
fn all_same(texts: &[&str]) {
    compared(texts, true);
}

#[track_caller]
fn none_same(texts: &[&str]) {
    compared(texts, false);
}

/// Compares the first text with each other one.
#[track_caller]
fn compared(texts: &[&str], expected: bool) {
    for other in &texts[1..] {
        assert_eq!(same(texts[0], other), expected, "{} and {other}", texts[0]);
        assert_eq!(same(other, texts[0]), expected, "{other} and {}", texts[0]);
    }
}

#[test]
fn units_are_equal_where_they_are_converted_to_each_other_or_one_is_absent() {
    all_same(&["5", r"5\text{ cm}", r"5\text{ m}", r"5^\circ", r"5\%", r"\$5", "5€", r"5\text{ boxes}"]);
    none_same(&[r"5\text{ cm}", r"5\text{ m}", r"5\text{ cm}^2", r"5\text{ kg}", r"5\%", r"\$5", r"5\text{ boxes}"]);
    all_same(&[r"100\text{ cm}", r"1\text{ m}", r"1000 \text{ mm}", "100"]);
    all_same(&[r"90\text{ minutes}", r"1.5\text{ hours}", r"5400 \text{ s}"]);
    none_same(&[r"30\text{ minutes}", r"30\text{ hours}", r"30 \text{ seconds}", r"30\text{ days}"]);
    all_same(&[r"21\text{ days}", r"3\text{ weeks}", r"504\,\mathrm{h}"]);
    all_same(&[r"3\text{ ft}", r"36\text{ in}", r"1\text{ yard}", r"\text{3 feet}"]);
    all_same(&[r"10\text{ m/s}", r"36\text{ km/h}", r"10\frac{\text{m}}{\text{s}}", r"36 \text{ km per hour}"]);
    none_same(&[r"10\text{ m/s}", r"10\text{ km/h}", r"10\text{ m}", r"10\text{ m/s}^2"]);
    all_same(&[r"15\text{ cm}^2", r"15\text{ square centimeters}", r"15\,\mathrm{cm}^{2}", r"0.0015\text{ m}^2"]);
    all_same(&[r"12\text{ square units}", r"12\text{ units}^2", r"12\text{ cm}^2", "12"]);
    none_same(&[r"12\text{ square units}", r"12\text{ cm}", r"12\text{ cm}^3"]);
    all_same(&[r"2\text{ liters}", r"2000\text{ ml}", r"2000\text{ cm}^3"]);
    all_same(&[r"4\text{ kg}", r"4000\text{ g}"]);
    all_same(&[r"7\pi\text{ cm}", r"0.07\pi\text{ m}", r"7\pi"]);
    all_same(&["28%", r"28\%", "28 pct", r"28\text{ percent}", "28 percentage"]);
    all_same(&["50¢", r"\$0.50", r"0.5\text{ dollars}", r"50 \text{ cents}"]);
    none_same(&[r"\$5", "5€", "£5", r"5\text{ cents}", r"5\text{ lb}"]);
    all_same(&[r"5\text{ pounds}", r"5\text{ lb}", "5"]);
    all_same(&[r"20^\circ C", "20°C", r"20\text{ degrees Celsius}", r"20\,^\circ\mathrm{C}"]);
    none_same(&[r"20^\circ C", r"20^\circ F", r"20^\circ", r"20\text{ kelvin}"]);
    all_same(&[r"5\text{ apples}", r"5\text{ apple}", r"5\text{ red apples}"]);
    none_same(&[r"5\text{ apples}", r"5\text{ pears}", "5 kg", "6"]);
}

#[test]
fn angles() {
    all_same(&[r"60^\circ", r"60\text{ degrees}", "60", r"\frac{\pi}{3}", r"\frac{\pi}{3}\text{ radians}"]);
    none_same(&[r"60^\circ", r"60\text{ radians}", r"\frac{\pi}{6}", "1.047"]);
    all_same(&[r"30^\circ, 150^\circ", r"\frac{5\pi}{6}, \frac{\pi}{6}"]);
    all_same(&[r"\sin 30^\circ", r"\sin\frac{\pi}{6}", r"\cos 60^{\circ}", r"\frac12", "0.5"]);
    none_same(&[r"\sin 30", "0.5", r"\sin 30^\circ"]);
    all_same(&[r"\tan 45^\circ", "1", r"\cot\frac{\pi}{4}", r"\sin^2 5^\circ+\cos^2 5^\circ"]);
    all_same(&[r"\cos 15^\circ", r"\frac{\sqrt6+\sqrt2}{4}", r"\sin(75^\circ)"]);
    none_same(&[r"\tan 90^\circ", "0", r"\infty", r"\tan 270^\circ"]);
    all_same(&[r"\arctan 1", r"\frac{\pi}{4}"]);
    all_same(&[r"\angle PQR = 40^\circ", "40", r"40^\circ"]);
}

#[test]
fn names_are_equal_or_absent() {
    all_same(&["x=5", "5", "5=x", "x=5.0", "x-5=0", r"\text{x}=5"]);
    none_same(&["x=5", "y=5", "x=6", "x=-5", "2x=5"]);
    all_same(&["7", "f(2)=7", "|PQ|=7", "P:Q=7", r"\frac{PQ}{RS}=7", r"\overline{PQ}=7", "f'(x)=7", "f^{-1}(x)=7"]);
    none_same(&["f(2)=7", "f(3)=7", "f^2(2)=7", "2f=7"]);
    none_same(&["7", "x+y=7", "x^2=7", "PQR=7", "x<7"]);
    all_same(&["y=2x+3", "f(x)=2x+3", "2x+3", "2x-y+3=0", "y-2x=3", "-4x+2y=6"]);
    none_same(&["y=2x+3", "y=2x-3", "g(x)=2x+3", "2x+y+3=0"]);
    all_same(&["3x+6y-9=0", r"y=-\frac12x+\frac32", "-x-2y=-3"]);
    all_same(&[r"\frac{x^2}{4}+\frac{y^2}{9}=1", "9x^2+4y^2=36", r"\frac{x^2}{16}+\frac{y^2}{36}=\frac14"]);
    all_same(&[r"T_{PQR}:T=2:9", "2:9", r"16:72"]);
}

#[test]
fn lists_with_names_are_lists_in_their_order() {
    all_same(&["a=4,b=5", "4,5", "(4,5)", "b=5,a=4", "(a,b)=(4,5)"]);
    none_same(&["a=4,b=5", "5,4", "(5,4)", "a=5,b=4", "a=4,c=5", "(b,a)=(4,5)", r"\{4,5\}"]);
    all_same(&["x=7, p=3", "7, 3", "p=3, x=7", "(3,7)"]);
    all_same(&["x_1=2, x_2=3", "2,3", "3,2", "x_2=3,x_1=2", r"x_{1}=2,\quadx_{2}=3"]);
    all_same(&["x=2 or x=3", "2,3", "3 and 2", "x=2,3", r"x \in \{3,2\}", r"x=3\text{ or }2"]);
    none_same(&["x=2,3", "y=2,3", "x=2,4", "x=2"]);
    all_same(&["(x,y)=(1,2)", "(1,2)", "x=1,y=2"]);
    none_same(&["(x,y)=(1,2)", "(a,b)=(1,2)", "(2,1)", "1,2,3"]);
    all_same(&["p=5,q=2;p=7,q=2", "(5,2),(7,2)", "(7,2);(5,2)"]);
    none_same(&["p=5,q=2;p=7,q=2", "(2,5),(2,7)", "(5,2)"]);
    all_same(&[r"(x,y)=(6,8)\quad\text{and}\quad(8,6)", "(8,6),(6,8)"]);
}

#[test]
fn lists_sets_and_tuples() {
    all_same(&["1;2;3", "3,1,2", r"\{1,2,3\}", "{3, 2, 1}", "1, 2, and 3"]);
    all_same(&["(0;1;2),(3;4;5)", "(3,4,5),(0,1,2)", "(0,1,2);(3,4,5)"]);
    all_same(&["1,1,2", "2,1,1"]);
    none_same(&["1,1,2", "1,2", "1,2,2", r"\{1,2\}"]);
    all_same(&[r"\{1,1,2\}", r"\{2,1\}"]);
    all_same(&["(1,2),(3,4),(1,2)", "(3,4),(1,2)"]);
    none_same(&["(1,3)", "(3,1)", "[1,3]", r"\{1,3\}", "{1,3}", "1,3", "13"]);
    all_same(&[r"\pm 3", "3,-3", r"\{-3,3\}", "-3 or 3", "{-3, 3}"]);
    none_same(&[r"\pm 3", "3", "-3", r"\pm 4"]);
    all_same(&[r"x=\frac13, x=\frac{-1\pm\sqrt7}{2}", r"\frac13, \frac{-1-\sqrt7}2, \frac{\sqrt7-1}{2}"]);
    all_same(&[r"\langle 1,-2\rangle", "(1,-2)"]);
    all_same(&["4:6", "2:3", "6:9"]);
    all_same(&["3:4:5", "6:8:10"]);
    none_same(&["2:3", "3:2", r"\frac23", "2:3:1", "0:3"]);
    none_same(&["2:30", "1:15", "2:31", "2", "4:60"]);
    none_same(&["12:00", "1:00", "12", "24:00"]);
    all_same(&[r"\text{c}", r"\text{C}", "(C)", r"\text{(c)}"]);
    none_same(&["c", "C", "d"]);
    all_same(&[r"\emptyset", r"\{\}", r"\text{no solution}", "No solutions"]);
}

#[test]
fn inequalities_are_the_intervals_of_their_solutions() {
    all_same(&["x>3", r"(3,\infty)", r"x\in(3,+\infty)", "3<x", "2x+1>7", r"\{x \mid x>3\}", r"\{x\in ℝ : x>3\}"]);
    none_same(&["x>3", r"x\ge3", "x<3", "y>3", r"[3,\infty)", r"(-\infty,3)", "3", r"x\ne3", r"(3,\infty)\cup\{2\}"]);
    all_same(&[r"-2 \\le x \\le 7", r"-2\le x\le7", "[-2,7]", r"7\geq x\geq-2", r"x \in [-2,7]", "-2<=x<=7"]);
    all_same(&["1<2x+1<7", "(0,3)", "0<x<3", r"x>0\text{ and }x<3"]);
    all_same(&[r"x<1\text{ or }x>3", r"(-\infty,1)\cup(3,\infty)", "x>3, x<1", "|x-2|>1", "|4-2x|>2"]);
    none_same(&[r"x<1\text{ or }x>3", "(1,3)", r"(-\infty,1]\cup(3,\infty)", r"x<1\text{ and }x>3, x=1"]);
    // Neither a power nor a product is the variable of an interval.
    none_same(&[r"(4,\infty)", "x^2>4", "xy>4", r"\frac1x>4"]);
    none_same(&[r"x<0\text{ or }x>5", r"x<0\text{ and }x>5", "(0,5)"]);
    none_same(&[r"x<1\text{ and }x>0", r"x<1\text{ or }x>0"]);
    none_same(&[r"x=1\text{ or }y=2", "x=1,y=2"]);
    none_same(&[r"\text{red and blue}", r"\text{red or blue}"]);
    all_same(&[r"x=1\text{ or }x=2", "x=1, x=2", r"x=2\text{ and }x=1"]);
    all_same(&["|x|<3", "(-3,3)", "-3<x<3"]);
    all_same(&[r"2\le|z|\le\frac52", r"z\in[-\frac52,-2]\cup[2,\frac52]"]);
    all_same(&[r"x\ne3", "x != 3", r"(-\infty,3)\cup(3,\infty)", r"\mathbb{R}\setminus\{3\}"]);
    all_same(&[r"x>0, x\ne1", r"(0,1)\cup(1,\infty)"]);
    all_same(&["[1,2]∪[2,3]", "[1,3]", r"(2,3]\cup[1,2]"]);
    none_same(&[r"[1,2)\cup(2,3]", "[1,3]", "[1,2)"]);
    all_same(&["0<f(x)<1", "(0,1)"]);
    all_same(&["a<x<b", "(a,b)"]);
    all_same(&[r"k>\sqrt2", r"(\sqrt2,\infty)", r"k>\frac{2}{\sqrt2}"]);
    all_same(&[r"\mathbb{R}", "ℝ", r"(-\infty,\infty)", r"x\in\mathbb R", r"\text{all real numbers}"]);
    all_same(&[r"\mathbb{Z}", r"\text{integers}", "ℤ"]);
    none_same(&[r"\mathbb{R}", r"\mathbb{Q}", r"\mathbb{Z}", "R", r"\mathbb{N}"]);
}

#[test]
fn numbers_as_people_write_them() {
    all_same(&["12345", r"12\,345", "12 345", "12~345", "12\u{202f}345", "12,345", "12,345.0"]);
    all_same(&["1,22", "1.22"]);
    all_same(&["1,22", "22, 1"]);
    none_same(&["1,5", "1.5"]);
    none_same(&[r"\frac{dy}{dx}", r"\frac{y}{x}", r"\frac{dx}{dy}", r"\frac{d}{dx}", r"\frac1x"]);
    none_same(&[r"\frac{dy}{dx}=2x", r"\frac{y}{x}=2x"]);
    all_same(&["0,111", "0.111"]);
    all_same(&["2000,75", "2000.75", "2 000.75"]);
    none_same(&["1, 200", "1200"]);
    none_same(&["1,000", "1.000", "1,0"]);
    none_same(&["1 20", "120"]);
    all_same(&["1.5e3", "1500", "1.5E+3", r"1.5\times10^3", "15e2"]);
    all_same(&["2.0e-4", "0.0002", "2e-04"]);
    none_same(&["2e+5", "200000", "2e5"]);
    none_same(&["2e-5", "0.00002"]);
    all_same(&["2e", "2e^1"]);
    none_same(&["2e", "2e1"]);
    all_same(&["3 1/2", r"3\frac12", "3.5", "7/2"]);
    none_same(&[r"3\frac14", r"\frac34", "3.1"]);
    all_same(&[r"0.\overline{3}", r"0.\bar{3}", r"\frac13", r"0.\dot{3}"]);
    none_same(&[r"\frac13", "0.3", "0.33", "0.3333", r"\frac{333}{1000}"]);
    all_same(&[r"\frac{1}{12}", "0.0833333333333333", "0.083333333333"]);
    all_same(&[r"\sqrt{19}", "4.358898943540674"]);
    none_same(&[r"\sqrt{19}", "4.3589", "4.358898943541674"]);
    all_same(&["Answer: 9", r"Answer \[ 9 \]", r"The answer is \( 8+1 \)", r"\text{Final answer: }9"]);
    none_same(&["9", "not 9", "less than 9", "the 8"]);
    none_same(&["12", "ext{12}", "1,2"]);
    all_same(&[r"\begin{pmatrix}1\\2\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}\n}.\n\\end{align*"]);
}

#[test]
fn chains_of_equations_end_with_the_value() {
    all_same(&["x=4+4+3=11", "11", "x=11", r"x=11\approx11.2", r"x\approx11"]);
    all_same(&[r"z=\frac13\approx0.33", r"\frac13", r"\frac13\approx0.33"]);
    all_same(&["2+3=5", "5"]);
    none_same(&["2+3=6", "6", "5"]);
    none_same(&["n!=6", "n != 6"]);
    none_same(&["7 = 11a+c", "11a+c", "7"]);
    none_same(&[r"\pi\approx3.14", "3.14"]);
}

#[test]
fn identities_hold_at_every_point() {
    all_same(&[r"\tan^2 y+1", r"\sec^2 y", r"\frac{1}{\cos^2 y}"]);
    all_same(&[r"\cos x", r"\sin(x+\frac{\pi}{2})", r"\sin(90^\circ-x)"]);
    all_same(&[r"\sin 2x", r"2\sin x\cos x"]);
    none_same(&[r"\sin 2x", r"2\sin x", r"\sin x", r"\sin 2y", r"\sin^2 x"]);
    all_same(&[r"\tan x", r"\frac{\sin x}{\cos x}"]);
    all_same(&["e^{i\\pi}", "-1", r"i^2"]);
    all_same(&[r"\exp(x+1)", "e^{x+1}", r"e\cdot e^x"]);
    all_same(&[r"\log_2 8", "3", r"\frac{\ln 8}{\ln 2}", r"\lg 1000", r"\log_{10}1000", r"\ln e^3"]);
    all_same(&[r"\log_4 8", r"\frac32"]);
    all_same(&[r"\log 2+\log 3", r"\log 6"]);
    none_same(&[r"\log 2", r"\ln 2", r"\log_2 2"]);
    all_same(&[r"\log_2 100", r"2+2\log_2 5"]);
    all_same(&[r"\sqrt{x^2}", "|x|"]);
    none_same(&[r"\sqrt{x^2}", "x", "-x"]);
    none_same(&["|x|", "x", r"\lfloor x\rfloor"]);
    all_same(&[r"|x-1|", r"|1-x|"]);
    all_same(&[r"\sqrt{3+2\sqrt2}", r"1+\sqrt2"]);
    none_same(&[r"\sqrt{3+2\sqrt2}", "2.4142", r"\sqrt2"]);
    all_same(&[r"\frac1x+\frac1y", r"\frac{x+y}{xy}"]);
    none_same(&[r"\frac1x+\frac1y", r"\frac{1}{x+y}", r"\frac{2}{x+y}"]);
    all_same(&[r"\frac{a}{b+c}", r"\frac{-a}{-b-c}"]);
    all_same(&[r"\lfloor 2.5\rfloor", "2", r"\lceil 1.1\rceil", r"\lfloor\sqrt5\rfloor", "⌊2⌋"]);
    all_same(&[r"\lfloor -2.5\rfloor", "-3"]);
    all_same(&[r"G_n=\sum_{j=1}^{n} G_j H_{n-j}", r"G_n=\sum_{j=1}^{n} H_{n-j}G_j"]);
    none_same(&[r"G_n=\sum_{j=1}^{n} G_j", r"G_n=\sum_{j=1}^{n-1} G_j", r"G_n=\prod_{j=1}^{n} G_j"]);
    none_same(&["f(x)", "f(y)"]);
}

#[test]
fn what_rounding_cannot_tell_is_not_equal() {
    none_same(&[r"\frac{1}{2004!}", r"\frac{1}{2006!}", "0"]);
    none_same(&["2^{2005}", "2^{2006}", r"2^{2005}+1"]);
    none_same(&[r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", "0"]);
    none_same(&["0", r"1-\cos(0.0000001)", r"\sqrt{10^{12}+1}-10^6", r"e^{-50}", r"10^{-40}\sin 1"]);
    none_same(&[r"e^{\pi\sqrt{163}}", "262537412640768744"]);
    none_same(&["1", r"\tanh 40", r"\frac{10^{20}+1}{10^{20}}", r"1+\sin^8(0.0001)"]);
    none_same(&["11_2", "11_3", "3"]);
    none_same(&[r"\infty", r"-\infty", "5", r"\infty+\sin 1"]);
}

#[test]
fn hostile_answers_take_bounded_time() {
    let nested = |open: &str, inside: &str, close: &str, depth: usize| {
        format!("{}{inside}{}", open.repeat(depth), close.repeat(depth))
    };
    let mut texts: Vec<String> =
        ["1,", "x=1,", "x>1,", r"\sin ", r"\tan x+", r"\sqrt{x}+", "(1,2),", "1;", r"\lfloor ", "1:", r"\pm 1,", "%"]
            .iter()
            .map(|part| part.repeat(300) + "1")
            .collect();
    texts.push(nested(r"\text{", "a", "}", 20_000));
    texts.push(nested(r"\mathbf{", "x", "}", 20_000));
    texts.push(r"\color{".repeat(20_000) + "1");
    texts.push(r"\begin{".repeat(20_000) + "1");
    for depth in [5, 9, 30] {
        texts.push(nested(r"(\sin", "x", "+1)^9", depth));
        texts.push(nested(r"\tan(", "x", ")", depth));
        texts.push(nested(r"\sqrt{1+", "x", "}", depth));
        texts.push(nested(r"(1+2^{", "x", "})^8", depth));
        texts.push(nested(r"\frac{1}{x+", "y", "}", depth));
        texts.push(nested(r"\{", "1,2", r"\}", depth));
    }
    for one in &texts {
        assert!(canonical(one).is_some());
        for other in [one.replacen('1', "2", 1), one.replacen('1', "1.0", 1), "x".to_string()] {
            assert_eq!(same(one, &other), same(&other, one), "{one} and {other}");
        }
    }
}

#[test]
fn function_values_are_compared_by_their_arguments() {
    all_same(&["f(x)=2x", "2x", "y=2x", "f(x)=x+x"]);
    all_same(&["f(x+1)", "f(1+x)"]);
    all_same(&["2f(x)", "f(x)+f(x)", r"f(x)\cdot 2"]);
    all_same(&[r"\frac{f(x)}{2}", r"\frac12f(x)"]);
    all_same(&["f(g(x))", "f( g( x ) )"]);
    all_same(&["f(x,y)+1", "1+f(x, y)"]);
    all_same(&["2y'", "y'+y'"]);
    all_same(&["f'(x)=2x", "2x"]);
    all_same(&["y(0)=1", "1"]);
    all_same(&[r"\frac12", "P(A)=0.5", "P(X>2)=0.5", "P(A|B)=0.5"]);
    all_same(&[r"f^{-1}(x)=\frac{x-1}{2}", r"\frac{x-1}{2}"]);
    // Brackets that multiply.
    all_same(&["x(x+1)", "x^2+x", "(x+1)x"]);
    all_same(&["k(x+1)", "kx+k"]);
    all_same(&["a(b+c)", "ab+ac"]);
    all_same(&[r"2\pi(r+h)", r"2\pi r+2\pi h"]);
    all_same(&["P(1+r)^t", "(1+r)^tP"]);
    all_same(&["p(1-p)", "p-p^2"]);
    all_same(&[r"\frac12h(a+b)", r"\frac{ah+bh}{2}"]);
    all_same(&["mg(h-R)", "mgh-mgR"]);
    all_same(&["2^n(n)", "n2^n"]);
    all_same(&["i(2+3)", "5i"]);
    all_same(&[r"\frac{f}{x+1}", r"f\cdot\frac{1}{x+1}"]);
}

#[test]
fn notations_of_one_value_are_the_same() {
    all_same(&[r"\{\emptyset\}", r"\{\{\}\}", r"\{\varnothing\}"]);
    all_same(&[r"\{\emptyset,1\}", r"\{1,\{\}\}"]);
    all_same(&[r"(1,2)\cup\emptyset", "(1,2)"]);
    all_same(&["(1,2),(3,4)", r"(1,2)\cup(3,4)"]);
    all_same(&[r"x>3,x\ne5", r"(3,5)\cup(5,\infty)"]);
    all_same(&[r"\vec{AB}", r"\overrightarrow{AB}", r"\overrightarrow{A B}"]);
    all_same(&[r"2\vec{a}+\vec{b}", r"\overrightarrow{b}+2\overrightarrow{a}"]);
    all_same(&["5!!", "15"]);
    all_same(&["6!!", "48"]);
    all_same(&["0.(3)", r"\frac13", "0.333...", r"0.333\ldots", r"0.\overline{3}"]);
    all_same(&["0.1(6)", r"\frac16", "0.1666..."]);
    all_same(&["0.121212...", r"\frac{4}{33}"]);
    all_same(&["5–6", r"5\text{ to }6"]);
    all_same(&["05/06/2020", "5/6/2020"]);
    all_same(&["2000-50-10", "1940"]);
    all_same(&["40/50/2000", r"\frac{1}{2500}"]);
    all_same(&[r"\overline{AB}", r"\overline{BA}", r"\bar{BA}"]);
    all_same(&[r"2\overline{AB}+1", r"1+2\overline{BA}"]);
    all_same(&["0.5(20)", "10"]);
    all_same(&["1.5(2)", "3"]);
    all_same(&["2+0.5(3)", "3.5"]);
    all_same(&["-0.1(6)", r"-\frac16", "$-0.1(6)$"]);
    all_same(&[
        r"0.\overline6",
        r"0.\bar 6",
        r"0.\dot6",
        r"0.\overline {6}",
        r"0.\overline{ 6 }",
        r".\overline{6}",
        r"0.66\overline6",
        r"\frac23",
    ]);
    all_same(&[r"1.\overline3", r"\frac43"]);
    all_same(&["1:05", "01:05"]);
    all_same(&[r"5\text{ millions}", r"5\text{ million}", "5000000"]);
    all_same(&[r"\{1,2,\ldots,10\}", r"\{1,2,...,10\}", r"\{1,2,…,10\}"]);
    all_same(&[r"\frac{dy}{dx}=2x", "dy/dx=2x", r"\frac{\mathrm{d}y}{\mathrm{d}x}=2x", "2x"]);
    all_same(&[r"\frac{d^2y}{dx^2}", r"\frac{d^{2}y}{dx^{2}}", "d^2y/dx^2"]);
    all_same(&[r"\frac{d}{c}", "d/c"]);
    all_same(&[r"\lfloor x\rfloor+1", r"1+\lfloor x\rfloor"]);
    all_same(&["|x-3|", r"\sqrt{(3-x)^2}"]);
}

#[test]
fn bare_letters_are_units_beside_a_unit() {
    all_same(&["1 km", "1000 m", r"1000\text{ m}", r"1000\,\mathrm{m}"]);
    all_same(&[r"0.5 \text{ kg}", "500 g", r"500\text{ g}"]);
    all_same(&["36 km/h", "10 m/s", r"10\text{ m/s}"]);
    all_same(&[r"9.8\text{ m/s}^2", "9.8 m/s^2"]);
    all_same(&["2 h", r"120\text{ min}"]);
    all_same(&[r"5\text{ pounds}", "£5"]);
    all_same(&[r"5\text{ pounds}", r"5\text{ lb}"]);
    all_same(&[r"5\text{ MB}", r"5\text{ megabytes}", "5"]);
    none_same(&["1 km", "100 m", "1000 g", "m", "1000"]);
    none_same(&["5m", "5"]);
}

#[test]
fn a_choice_with_its_value_is_either() {
    all_same(&[r"\text{(B) }5", "5", "B", "(B)", r"\text{(B)}", r"\textbf{(B)}\ 5", r"5\text{ cm}"]);
    all_same(&[r"\textbf{(C)}\ \frac12", "0.5", "C"]);
    none_same(&[r"\text{(B) }5", r"\text{(A) }5", r"\text{(B) }6", "6", "A", r"\text{(B) and (C)}"]);
}
