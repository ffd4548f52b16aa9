"""How long functions are."""

from __future__ import annotations

from build.size import function_lengths

SOURCE = '''
def one(): return 1

class Pair:
    async def three(self):
        """What it does."""
        return 3

    def four(self):
        def two():
            return 2
        return two
'''


def test_a_function_has_its_lines_from_the_name_to_the_end_and_counts_inside_another_too() -> None:
    assert sorted(function_lengths(SOURCE)) == [1, 2, 3, 4]
