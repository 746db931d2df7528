"""GBNF as text: how a grammar is spelled, and what is refused before llama.cpp sees it."""

from __future__ import annotations

import pytest
from support import frames, scripted_agent

from localmem.calls.chat_format import BARE
from localmem.calls.frame import Frame
from localmem.calls.gbnf import write_gbnf, written
from localmem.calls.gbnf_check import check_gbnf
from localmem.calls.grammar import CallGrammar, FunctionChoice
from localmem.calls.pattern import lengths, parse, within
from localmem.errors import BackendError, LocalmemError


def taking(**properties: object) -> CallGrammar:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return CallGrammar(BARE, (FunctionChoice("f", schema),))


@pytest.mark.parametrize("name", frames())
def test_built_in_functions_have_a_twin_in_every_frame(name: str):
    choices = scripted_agent(thought="first").grammar(heartbeat=True).choices
    text = write_gbnf(CallGrammar(frames()[name], choices))
    assert text.startswith("root ::= call-0 | call-1 | ")
    check_gbnf(text)


def test_grammar_of_a_step_stays_small():
    """A rule for each character of a long text would be thousands: texts share their blocks."""
    text = write_gbnf(scripted_agent().grammar())
    assert text.count("\n") < 60
    assert len(text) < 6_000


def test_text_of_the_frame_is_spelled_as_it_is():
    frame = Frame('<tag>\n{"name": "', '",\t"arguments": ', '}\\"\x00é😀\n')
    text = write_gbnf(CallGrammar(frame, taking().choices))
    assert '"<tag>\\n' not in text  # each character that is not printable has its code
    assert '"<tag>\\x0A{\\"name\\": \\"f\\",\\x09\\"arguments\\": " "{}" "}\\\\\\"\\x00é😀\\x0A"' in text


def test_alike_rules_are_written_once():
    word = {"type": "string", "maxLength": 5}
    text = write_gbnf(taking(a=word, b=word, c={"type": "array", "items": word, "maxItems": 3}))
    assert sum(line.startswith("string-") for line in text.splitlines()) == 1


def test_recursive_type_refers_to_itself():
    node = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}
    node |= {"required": ["kids"], "additionalProperties": False}
    grammar = taking(node={"$ref": "#/$defs/Node"})
    parameters = {**grammar.choices[0].parameters, "$defs": {"Node": node}}
    text = write_gbnf(CallGrammar(BARE, (FunctionChoice("f", parameters),)))
    assert "\nnode-" in text


def test_two_functions_definitions_of_one_name_stay_apart():
    def owner(name: str, value: str) -> FunctionChoice:
        [choice] = taking(x={"$ref": "#/$defs/Kind"}).choices
        return FunctionChoice(name, {**choice.parameters, "$defs": {"Kind": {"const": value}}})

    text = write_gbnf(CallGrammar(BARE, (owner("f", "of f"), owner("g", "of g"))))
    assert "of f" in text
    assert "of g" in text


def test_refusal_names_the_function_and_the_way_out():
    with pytest.raises(LocalmemError, match="function 'f': GBNF cannot say the format 'email'") as caught:
        write_gbnf(taking(x={"type": "string", "format": "email"}))
    assert "llguidance" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.5, "0.5"),
        (1e20, "100000000000000000000"),
        (-1e-7, "-0.0000001"),
        (True, "true"),
        ("\x7f", '"\\u007f"'),
    ],
)
def test_value_is_written_as_serde_writes_it(value: object, text: str):
    assert written(value) == text


# -- the check --------------------------------------------------------------------------------------------------------

DEEP = "root ::= " + "(" * 300 + '"a"' + ")" * 300
WAYS = "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} | r{i + 1}" for i in range(40)), 'r40 ::= "a"'])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no rule 'root'"),
        ('rot ::= "a"', "no rule 'root'"),
        ("root ::= nothing", "not defined"),
        ('root ::= "a" root-2 | (other)*', "not defined"),
        ('root "a"', "::="),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= "a', "more"),
        ('root ::= "a\\', "escape"),
        ('root ::= "\\q"', "escape"),
        ('root ::= "\\xZZ"', "escape"),
        ("root ::= [a", "more"),
        ("root ::= []", "empty class"),
        ("root ::= [^]", "empty class"),
        ("root ::= [z-a]", "high to low"),
        ('root ::= ("a"', "expected )"),
        ('root ::= "a")', "end of the rule"),
        ("root ::= *", "end of the rule"),
        ('root ::= ""*', "nothing to repeat"),
        ('root ::= "a"{2', "{n}"),
        ('root ::= "a"{,2}', "{n}"),
        ('root ::= "a"{3,2}', "repetitions"),
        ('root ::= "a"{2000}', "repetitions"),
        ('root ::= "a"{1,2000}', "repetitions"),
        ('root ::= ("a" | b b){700}\nb ::= "b"', "repetitions"),
        ('root ::= "a"{99}{99}', "repetitions"),
        ("root ::= root", "begins with itself"),
        ('root ::= root "a" | "b"', "begins with itself"),
        ('root ::= a root\na ::= "x"?', "begins with itself"),
        ('root ::= a\na ::= b? a "x"\nb ::= "b"', "begins with itself"),
        ('root ::= ("a"?)*', "repeated without end"),
        ('root ::= "a" ("b" | c ("." [0-9])?*)\nc ::= "c"', "repeated without end"),
        ('root ::= "a" root', "never ends"),
        ('root ::= "a" b\nb ::= "x" b | "y" b', "never ends"),
        ("root ::= <[5]>", "end of the rule"),
        ("root ::= .", "end of the rule"),
        ('root ::= "a\0b"', "NUL"),
        ('root ::= "\ud800"', "half a character"),
        (DEEP, "groups in groups"),
        (WAYS, "too many ways"),
        ("root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)) + '\nr5000 ::= "a"', "too deep"),
        ("\n".join(['root ::= "a"', *(f"r{i} ::= r0{{1900}}" for i in range(1, 400)), 'r0 ::= "a"']), "elements"),
    ],
)  # fmt: skip
def test_unsafe_gbnf_is_refused_with_the_reason(text: str, reason: str):
    with pytest.raises(BackendError) as caught:
        check_gbnf(text)
    assert reason in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a"',
        'root ::= "" | "a" | ',
        '# a comment\nroot ::= a # and one here\n\na ::= "x" |\n  "y"\n',
        'root ::= ( "a"\n | [^b-d\\]] )* "\\x41\\u00e9\\U0001F600\\n"',
        'root ::= "(" root ")" | "x"',
        'root ::= ws "a"{0,1999} tail{500}\nws ::= [ ]*\ntail ::= [a-]?',
    ],
)
def test_safe_gbnf_passes(text: str):
    check_gbnf(text)


# -- patterns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^abc$", (3, 3)),
        ("^a{2,5}b?$", (2, 6)),
        ("^(a|bcd)+$", (1, None)),
        ("abc", (3, None)),
        ("^a|b$", (1, None)),
        ("^$", (0, 0)),
        ("^(?:xy){3}(?P<z>z)$", (7, 7)),
        ("^\\x41\\u0042[\\]\\-a-c^]$", (3, 3)),
    ],
)
def test_pattern_has_these_lengths(pattern: str, expected: tuple[int, int | None]):
    assert lengths(parse(pattern)) == expected


@pytest.mark.parametrize(
    ("pattern", "longest", "expected"),
    [
        ("^a+$", 9, (1, 9)),
        ("^x(ab)*y$", 9, (2, 8)),
        ("^a+b$|^cc+$", 4, (2, 4)),
        ("^a(\\.b+)?c$", 6, (2, 6)),
        ("^a(\\.b+)?c$", 3, (2, 2)),
        ("^a{3,}$", 9, (3, 9)),
        ("^abc$|^a$", 2, (1, 1)),
    ],
)
def test_pattern_is_held_to_a_length(pattern: str, longest: int, expected: tuple[int, int]):
    node = within(parse(pattern), longest)
    assert node is not None
    assert lengths(node) == expected


def test_pattern_that_needs_more_room_has_no_text():
    assert within(parse("^abc$"), 2) is None


@pytest.mark.parametrize("pattern", ["^a+b+$", "^(a|bc)+$", "^a+(b+)?$"])
def test_room_that_two_parts_would_share_is_refused(pattern: str):
    with pytest.raises(LocalmemError, match="shares? 9 characters"):
        within(parse(pattern), 9)


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(?=a)b",
            "(?!a)",
            "(?<=a)",
            "(?i)a",
            "(a)\\1",
            "\\bfoo",
            "\\p{L}",
            "a^b",
            "a$b",
            "(^a)",
            "(a$)",
            "\\A",
            "\\Z",
        ),
        *(
            "[a",
            "(a",
            "a)",
            "a**",
            "a{2}{3}",
            "*a",
            "a{3,2}",
            "a{x}",
            "a{9999}",
            "[]",
            "[b-a]",
            "[[a]]",
            "[a&&b]",
            "\\",
        ),
        *("\\xZ1", "\\u12", "(?P<n", "[\\d-a]|}", "\\é"),
    ],
)
def test_pattern_outside_the_subset_is_refused(pattern: str):
    with pytest.raises(LocalmemError, match="pattern") as caught:
        parse(pattern)
    assert caught.value.hint
