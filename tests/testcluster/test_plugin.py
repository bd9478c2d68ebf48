"""The pytest plugin's rules, on little test files of their own."""

import pytest

pytest_plugins = ["pytester"]

INI = "[pytest]\nmarkers =\n  cluster: c\n  node: n\n"


@pytest.fixture
def tests(pytester):
    pytester.makeini(INI)
    return pytester


def test_marked_tests_run_last_and_are_announced(tests):
    tests.makepyfile(
        """
        import pytest

        @pytest.mark.node
        def test_node(): pass

        @pytest.mark.cluster
        def test_cluster(): pass

        def test_plain(): pass
        """
    )
    result = tests.runpytest("-v", "-p", "no:randomly")
    result.stdout.fnmatch_lines(
        ["*test_plain PASSED*", "the test cluster: *", "*test_cluster PASSED*", "*test_node *"]
    )
    assert str(result.stdout).count("the test cluster: ") == 1


def test_nothing_is_announced_without_marked_tests(tests):
    tests.makepyfile("def test_plain(): pass")
    assert "the test cluster" not in str(tests.runpytest().stdout)


SKIPPING = """
    import pytest

    def test_in_body(): pytest.skip("no such thing here")

    @pytest.mark.skip(reason="marked")
    def test_marked(): pass

    @pytest.mark.xfail(reason="known", strict=True)
    def test_known(): assert False
"""


def test_skips_are_skips(tests):
    tests.makepyfile(SKIPPING)
    tests.runpytest().assert_outcomes(skipped=2, xfailed=1)


def test_under_nothing_left_out_skips_are_failures_with_their_reason(tests):
    tests.makepyfile(SKIPPING, test_module="import pytest\npytest.importorskip('nowhere')\n")
    result = tests.runpytest("--nothing-left-out", "--continue-on-collection-errors")
    assert result.ret != 0
    text = str(result.stdout)
    for reason in ("no such thing here", "marked", "could not import 'nowhere'"):
        assert f"left out, which --nothing-left-out forbids: Skipped: {reason}" in text
    outcomes = result.parseoutcomes()
    assert outcomes.get("skipped", 0) == 0
    assert outcomes["xfailed"] == 1


@pytest.mark.parametrize(
    ("wish", "times"), [("", 3), ("5", 5), ("100", 50), ("full", 50), (None, 3)]
)
def test_rounds(rounds, monkeypatch, wish, times):
    if wish is None:
        monkeypatch.delenv("ROUNDS", raising=False)
    else:
        monkeypatch.setenv("ROUNDS", wish)
    assert rounds(few=3, full=50) == times
