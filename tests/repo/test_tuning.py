"""Every number that steers the planner, the predictions or the runtime says what it is for."""

import textwrap

import tuning


def test_the_page_is_what_the_sources_say():
    assert tuning.PAGE.read_text() == tuning.page(), "run `make tuning`, and read the difference"


def test_every_number_has_a_licence_or_is_none_that_is_tuned():
    bare = [
        f"{number.file}: {number.name} = {number.value}"
        for number in tuning.numbers()
        if not number.tuned_by and number.name not in tuning.NAMES_NOT_TUNED
    ]
    assert not bare, (
        "say above each of these what it is for, `tuned by:` and `without it:`, or list it in "
        "NOT_TUNED of tests/support/tuning.py:\n" + "\n".join(bare)
    )


def test_what_is_not_tuned_is_there_and_has_no_licence():
    found = {number.name: number for number in tuning.numbers()}
    assert not tuning.NAMES_NOT_TUNED - found.keys()
    both = [name for name in tuning.NAMES_NOT_TUNED if found[name].tuned_by]
    assert not both


def test_a_name_has_one_value():
    values = {}
    for number in tuning.numbers():
        values.setdefault(number.name, set()).add(number.value)
    twice = {name: found for name, found in values.items() if len(found) > 1}
    assert not twice


def test_a_licence_ends_at_a_blank_line():
    text = textwrap.dedent("""\
        /// Two of a kind.
        /// tuned by: `a command`.
        /// without it: nothing
        /// works.
        constexpr int kOne = 1, kTwo = 2;  // behind
        inline constexpr size_t kThree{3};

        constexpr double kBare = 0.5;
        constexpr const char* kWord = "1";
        """)
    found = tuning.cpp_numbers(text, "a.cpp")
    assert [(n.name, n.value, n.without_it) for n in found] == [
        ("kOne", "1", "nothing works."),
        ("kTwo", "2", "nothing works."),
        ("kThree", "{3}", "nothing works."),
        ("kBare", "0.5", ""),
    ]
    text = "#: What.\n#: tuned by: x.\n#: without it: y.\nA, _B = 1, 2.0\n\nC = Patience(n=3)\n"
    text += "D = ('a', 1)\n"
    found = tuning.python_numbers(text, "a.py")
    assert [(n.name, n.value, n.tuned_by) for n in found] == [
        ("A", "1", "x."),
        ("_B", "2.0", "x."),
        ("C", "Patience(n=3)", ""),
    ]
