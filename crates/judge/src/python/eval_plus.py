"""EvalPlus's tests: converts inputs to the types that a task requires, and compares a result with the reference's (Liu
et al. 2023; the rules are those of evalplus 0.3). The part of the checker program after checker.py.
"""

import time

NOT_NONE = {"check_str", "text_match_three", "text_starta_endb"}
AS_SETS = {
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array",
    "find_dissimilar", "Diff",
}

# The types of the inputs of MBPP's tasks, by task; JSON has only lists.
TUPLES = {2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809}
LISTS_OF_TUPLES = {63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780}
FIRST_LIST_OF_TUPLES = {75, 413, 444, 753}
SECOND_TUPLE = {106, 750}
FIRST_TUPLE = {250, 307, 405, 446, 617, 720, 763, 808}
TUPLES_OF_TUPLES = {259, 401, 445}
DEEP_TUPLES = {580, 615, 791}


def deep_tuple(value):
    return tuple(map(deep_tuple, value)) if isinstance(value, list) else value


def meant(task, call):
    """One argument list, with the types that the task requires."""
    if task in TUPLES:
        return [tuple(argument) for argument in call]
    if task in LISTS_OF_TUPLES:
        return [[tuple(part) for part in argument] for argument in call]
    if task in FIRST_LIST_OF_TUPLES:
        return [[tuple(part) for part in call[0]], call[1]]
    if task in SECOND_TUPLE:
        return [call[0], tuple(call[1])]
    if task in FIRST_TUPLE:
        return [tuple(call[0]), *call[1:]]
    if task in TUPLES_OF_TUPLES:
        return [tuple(tuple(part) for part in argument) for argument in call]
    if task in DEEP_TUPLES:
        return deep_tuple(call)
    if task == 115:
        return [[set(part) if isinstance(part, list) and part else {} for part in call[0]]]
    if task == 124:
        return [float(call[0]), complex(call[1])]
    if task == 252:
        return [complex(call[0])]
    if task == 278:
        return [tuple(tuple(part) if isinstance(part, list) else part for part in call[0])]
    if task == 722:
        return [{key: tuple(value) for key, value in call[0].items()}, *call[1:]]
    return call


# A longer result of the reference, in bytes, is not kept but computed again for each candidate.
MOST_KEPT = 1 << 26
AGAIN = (TAG, "again")


def reference_of(order):
    scope = {}
    exec(compile(order["program"], "<reference>", "exec"), scope)
    return scope[order["entry"]]


def run_expect(job):
    """The reference's results, and its time for each."""
    order = job.order
    function = reference_of(order)
    answers, seconds = [], []
    for text in order["inputs"]:
        send(b"T")
        call = meant(order["mbpp"], data(text))
        start = time.process_time()
        answer = function(*call)
        seconds.append(time.process_time() - start)
        if order["mbpp"] is not None and order["entry"] in NOT_NONE:
            answer = answer is not None
        answers.append(packed_long(answer) if is_long(answer) else pack(answer, foreign))
    send(b"S", json.dumps({"seconds": seconds, "again": answers.count(AGAIN)}).encode())
    send(b"E", marshal.dumps((answers, seconds), 2))


def foreign(value):
    return (TAG, "object", 0, type(value).__name__)


def packed_long(answer):
    """A long answer as its parts, each in bytes of its own, so that they can be read one by one; or `AGAIN`."""
    parts, size = [], 0
    for start in range(0, len(answer), PART):
        parts.append(marshal.dumps(pack(answer[start:start + PART], foreign), 2))
        size += len(parts[-1])
        if size > MOST_KEPT:
            return AGAIN
    return (TAG, "long", type(answer).__name__, len(answer), parts)


def expected_answer(word, rest):
    if word != "long":
        return object()
    kind, length, parts = rest
    return LongResult(kind, length, lambda start: unpack(marshal.loads(parts[start // PART]), expected_answer))


def computed_again(order, call):
    answer = reference_of(order)(*call)
    own_part = lambda start: unpack(pack(answer[start:start + PART], foreign), expected_answer)
    return LongResult(type(answer).__name__, len(answer), own_part)


def run_reference(job):
    order = job.order
    _, payload = receive()
    answers, seconds = marshal.loads(payload)
    compare = Comparison(order["entry"], order["mbpp"], order["atol"])
    function = []

    def tests():
        for text, answer, took in zip(order["inputs"], answers, seconds):
            arguments = own(meant, order["mbpp"], own(data, text))
            limit = max(order["wall"], order["slower"] * took)
            cpu = max(order["cpu"], order["slower"] * took * order["margin"])
            if answer == AGAIN:
                limit += order["comparing"]
                expected = own(computed_again, order, own(meant, order["mbpp"], own(data, text)))
            else:
                expected = unpack(answer, expected_answer)

            def test():
                if not function:
                    function.extend(named({order["entry"]}).values())
                if not function:
                    raise NameError(f"name '{order['entry']}' is not defined")
                found = call(function[0], arguments, cpu=cpu, mutable=False)
                if not compare.same(found, expected, arguments):
                    call_made = f"{order['entry']}({', '.join(map(picture, arguments))})"
                    return f"{call_made}: expected {picture(expected)}, found {picture(found)}"

            yield limit, test

    job.judge_all(tests())


class Comparison:
    def __init__(self, entry, mbpp, atol):
        self.entry, self.mbpp, self.atol = entry, mbpp, atol

    def same(self, found, expected, arguments):
        if self.mbpp is None and self.entry == "find_zero":
            coefficients, = arguments
            return abs(sum(c * math.pow(found, power) for power, c in enumerate(coefficients))) <= self.atol
        equal = found == expected
        if not (equal and type(expected) is LongResult):
            found, expected = whole(found), whole(expected)
            equal = equal or found == expected
        if self.mbpp is not None:
            equal = self.by_task(equal, found, expected, arguments)
        if self.atol == 0 and floats(expected):
            # The change also applies to later tests, as in EvalPlus.
            self.atol = 1e-6
        if equal or self.atol == 0:
            return bool(equal)
        if type(found) is not type(expected):
            return False
        return close(found, expected, self.atol)

    def by_task(self, equal, found, expected, arguments):
        entry = self.entry
        if entry == "are_equivalent":
            return True
        if entry == "sum_div":
            return equal or found == 0
        if entry == "surface_Area":
            base, height = arguments
            area = round(base * base + 2 * base * math.sqrt((base / 2) ** 2 + height**2))
            return equal or abs(found - area) <= self.atol
        if entry == "digit_distance_nums":
            one, other = map(str, arguments)
            width = max(len(one), len(other))
            pairs = zip(one.zfill(width), other.zfill(width))
            return equal or found == sum(abs(int(a) - int(b)) for a, b in pairs)
        if equal and type(expected) is LongResult:
            return True
        if entry in AS_SETS:
            return set(found) == set(expected)
        if entry in NOT_NONE:
            return found == expected if isinstance(found, bool) else expected == (found is not None)
        return equal


def floats(value):
    if type(value) is LongResult:
        return all(map(floats, value.parts()))
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(part, float) for part in value)
    return isinstance(value, float)


def close(found, expected, atol):
    """Like NumPy's allclose: within the absolute tolerance plus 1e-7 times the expected value."""
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(expected)
            and all(close(a, b, atol) for a, b in zip(found, expected))
        )
    if not all(isinstance(value, (int, float, complex)) for value in (found, expected)):
        raise TypeError("no numbers")
    return found == expected or (cmath.isfinite(expected) and abs(found - expected) <= atol + 1e-7 * abs(expected))
