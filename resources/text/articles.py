"""Articles: longer texts on numbers, years, regular polygons and chemical elements."""

import math
from collections.abc import Iterator
from datetime import date, timedelta

from parts import DAYS, MONTHS, listed, pick, weekday, words, written


def articles() -> Iterator[dict]:
    """Short articles on numbers, years, regular polygons and chemical elements."""
    texts = [number_article(n) for n in range(12, 120)]
    texts += [year_article(year) for year in range(1961, 2041)]
    texts += [polygon_article(sides) for sides in range(3, 29)]
    texts += [element_article(number) for number in range(1, 37)]
    # One of each in turn, as far as they go.
    order = sorted(range(len(texts)), key=lambda place: (place * 97) % len(texts))
    for place in order:
        yield {"text": texts[place]}


def factors(number: int) -> list[int]:
    """Find the prime factors, smallest first."""
    divisor = next((d for d in range(2, number + 1) if number % d == 0), None)
    return [] if divisor is None else [divisor, *factors(number // divisor)]


def roman(number: int) -> str:
    """Write a number below 400 in Roman numerals."""
    text = ""
    for value, numeral in zip([100, 90, 50, 40, 10, 9, 5, 4, 1], words("C XC L XL X IX V IV I"), strict=True):
        text += numeral * (number // value)
        number %= value
    return text


def number_article(n: int) -> str:
    """Describe a whole number."""
    primes, divisors = factors(n), [d for d in range(1, n + 1) if n % d == 0]
    following = next(p for p in range(n + 1, 2 * n) if len(factors(p)) == 1)
    digits = [int(digit) for digit in str(n)]
    remainder = n % 9
    kind = "prime number" if len(primes) == 1 else "composite number"
    built = (
        f"It has no divisors but 1 and {n} itself, and so it cannot be split into equal groups of more than one."
        if len(primes) == 1
        else f"It is the product {' × '.join(map(str, primes))} of prime numbers, and its divisors are "
        f"{listed(divisors)}, which makes {len(divisors)} of them."
    )
    nine = "so it can be divided by 9" if remainder == 0 else f"so dividing by 9 leaves the remainder {remainder}"
    root = math.isqrt(n)
    opening = pick(
        [f"The number {n} is", f"Between {n - 1} and {n + 1} lies {n},", f"Counting from one, we come to {n},"], n
    )
    return (
        f"{opening} {'an even' if n % 2 == 0 else 'an odd'} {kind}. {built} The next prime number after it is "
        f"{following}. In Roman numerals it is written {roman(n)}. A computer, which counts with the digits 0 and 1 "
        f"only, writes it {n:b}, with {n.bit_length()} digits, and in the hexadecimal system it is {n:x}.\n\nIts "
        f"square is {n} × {n} = {n * n}, and its cube is {n**3}. Its square root "
        + (
            f"is exactly {root}."
            if root**2 == n
            else f"lies between {root} and {root + 1}, since {root} × {root} = {root**2} is too little and {root + 1} "
            f"× {root + 1} = {(root + 1) ** 2} is too much."
        )
        + f" The sum of its digits is {' + '.join(map(str, digits))} = {sum(digits)}, {nine}. Whoever adds all whole "
        f"numbers from 1 to {n} finds {n * (n + 1) // 2}, which is half of {n} × {n + 1}. In everyday life it turns up "
        f"as well: {n} minutes are {n * 60} seconds, {n} weeks are {n * 7} days, and {n} dozens are {n * 12} pieces. "
        f"The double of {n} is {2 * n}, ten times {n} is {10 * n}, and {n} percent of 200 is {2 * n}."
    )


def year_article(year: int) -> str:
    """Describe a year of the Gregorian calendar."""
    first, last = date(year, 1, 1), date(year, 12, 31)
    length = (last - first).days + 1
    leap = length == 366
    rule = (
        f"is a leap year, since it can be divided by 4{' and, as the last of its century, by 400' * (year % 100 == 0)}"
        if leap
        else f"is no leap year, since {year} divided by 4 leaves the remainder {year % 4}"
    )
    later, march, june = "two days" if leap else "one day", date(year, 3, 1), date(year, 6, 1)
    september, december = date(year, 9, 1), date(year, 12, 1)
    around = "one day more comes before it than" if leap else "as many days come before it as"
    thirteenth = [MONTHS[month - 1] for month in range(1, 13) if date(year, month, 13).weekday() == 4]
    most = sorted({weekday(first), weekday(last)}, key=DAYS.index)
    middle = first + timedelta(days=length // 2)
    return (
        f"{year} {rule}. February has {length - 337} days, so the whole year has {length} days, which are "
        f"{length * 24} hours. It begins on a {weekday(first)} and ends on a {weekday(last)}. Most days of the week "
        f"occur 52 times in it; {listed(most)} {'occurs' if len(most) == 1 else 'occur'} 53 times. The next year "
        f"begins on a {weekday(date(year + 1, 1, 1))}, {later} later in the week, since {length} days are 52 weeks and "
        f"{later}.\n\nThe first of March is a {weekday(march)}, the first of June a {weekday(june)}, the first of "
        f"September a {weekday(september)}, and the first of December a {weekday(december)}. The "
        f"{'184th' if leap else '183rd'} day of the year is {written(middle)}, a {weekday(middle)}; {around} after it. "
        f"A Friday falls on the thirteenth of the month {pick(['', 'once', 'twice', 'three times'], len(thirteenth))}, "
        f"in {listed(thirteenth)}. Somebody born in {year} turns 18 in {year + 18} and 50 in {year + 50}. With its "
        f"months of 30 and 31 days, and with the one that is shorter, {year} is a year like many others: in "
        f"{next_alike(year)}, every date falls on the same day of the week again."
    )


def next_alike(year: int) -> int:
    """Find the next year with the same days of the week."""
    shape = (date(year, 1, 1).weekday(), date(year, 12, 31).weekday())
    following = year + 1
    while (date(following, 1, 1).weekday(), date(following, 12, 31).weekday()) != shape:
        following += 1
    return following


# Of 3 to 12 sides.
POLYGONS = words("triangle square pentagon hexagon heptagon octagon nonagon decagon hendecagon dodecagon")


def polygon_article(n: int) -> str:
    """Describe a regular polygon."""
    name = POLYGONS[n - 3] if n < 13 else f"polygon of {n} sides"
    total, side = (n - 2) * 180, 2 + n % 9

    def degrees(value: int, parts: int) -> str:
        return f"{value // parts} degrees" if value % parts == 0 else f"about {value / parts:.2f} degrees"

    split = (
        "It cannot be cut into smaller triangles from one of its corners, and it has no diagonals."
        if n == 3
        else f"From one of its corners it can be cut into {n - 2} triangles. From every corner a diagonal leads to "
        f"each corner but itself and its two neighbours, so {n} × {n - 3} ends of diagonals meet in the corners. Each "
        f"diagonal has two ends, and there are {n * (n - 3) // 2} of them."
    )
    axes = (
        f"Every one of its {n} axes of symmetry leads from a corner to the middle of the side that lies opposite."
        if n % 2
        else f"Of its {n} axes of symmetry, {n // 2} lead from a corner to the corner opposite, and the other {n // 2} "
        "from the middle of a side to the middle of the side opposite."
    )
    return (
        f"A regular {name} has {n} corners and {n} sides, all of the same length, and all of its angles are equal. "
        f"{split} The angles of a triangle sum to 180 degrees, and so the angles of this figure sum to {n - 2} × 180 = "
        f"{total} degrees. Each of the {n} angles takes its part, which is {degrees(total, n)}. Whoever walks once "
        f"around it turns at every corner by {degrees(360, n)}, since the turns sum to a whole turn of 360 "
        f"degrees.\n\n{axes} Turned around its middle by {degrees(360, n)}, the figure looks as before. If each side "
        f"is {side} centimetres long, the way around it is {n} × {side} = {n * side} centimetres; with sides twice as "
        f"long it would be {2 * n * side} centimetres. The more sides a regular polygon has, the closer it comes to a "
        f"circle: with {n + 1} sides, each angle is {degrees((n - 1) * 180, n + 1)}. Only three regular polygons cover "
        "a floor without gaps when one kind of tile is used: the triangle, the square and the hexagon. "
        + ("This figure is one of them." if n in (3, 4, 6) else "This figure is not one of them.")
    )


ELEMENTS = [
    tuple(entry.split(":"))
    for entry in words(
        "hydrogen:H helium:He lithium:Li beryllium:Be boron:B carbon:C nitrogen:N oxygen:O fluorine:F neon:Ne "
        "sodium:Na magnesium:Mg aluminium:Al silicon:Si phosphorus:P sulfur:S chlorine:Cl argon:Ar potassium:K "
        "calcium:Ca scandium:Sc titanium:Ti vanadium:V chromium:Cr manganese:Mn iron:Fe cobalt:Co nickel:Ni copper:Cu "
        "zinc:Zn gallium:Ga germanium:Ge arsenic:As selenium:Se bromine:Br krypton:Kr rubidium:Rb"
    )
]
GASES = {"H", "He", "N", "O", "F", "Ne", "Cl", "Ar", "Kr"}
FAMILIES = {
    "noble gases": ["He", "Ne", "Ar", "Kr"],
    "halogens": ["F", "Cl", "Br"],
    "alkali metals": ["Li", "Na", "K"],
    "alkaline earth metals": ["Be", "Mg", "Ca"],
}


def element_article(number: int) -> str:
    """Describe a chemical element."""
    name, symbol = ELEMENTS[number - 1]
    before = ELEMENTS[number - 2] if number > 1 else None
    after = ELEMENTS[number]
    period, rows = next((row, end) for row, end in enumerate([2, 10, 18, 36], 1) if number <= end)
    starts = {2: 1, 10: 3, 18: 11, 36: 19}[rows]
    state = "a gas" if symbol in GASES else "a liquid" if symbol == "Br" else "a solid"
    family = next((family for family, members in FAMILIES.items() if symbol in members), None)
    others = [e[0] for e in ELEMENTS if family and e[1] in FAMILIES[family] and e[1] != symbol]
    neighbours = f"{before[0]} stands before it and {after[0]} after it" if before else f"{after[0]} comes after it"
    letters = "one letter" if len(symbol) == 1 else "two letters, of which only the first is a capital"
    ion = number - 1
    return (
        f"{name.capitalize()} is a chemical element with the symbol {symbol}, which has {letters}. Its atomic number "
        f"is {number}: every atom of {name} has {number} proton{'s' * (number > 1)} in its nucleus. An atom without "
        f"electric charge has just as many electrons around it, {number} of them; if it loses one, "
        f"{ion if ion else 'none'} {'remains' if ion < 2 else 'remain'}, and the atom becomes an ion with a positive "
        "charge. Atoms of the same element may differ in the number of their neutrons; such atoms are called "
        f"isotopes.\n\nIn the periodic table, the elements stand in the order of their atomic numbers: {neighbours}. "
        f"{name.capitalize()} belongs to period {period}, the row that begins with {ELEMENTS[starts - 1][0]} and ends "
        f"with {ELEMENTS[rows - 1][0]} and has {rows - starts + 1} elements; {name} is number {number - starts + 1} in "
        "it. "
        + (
            f"It is one of the {family}, to which {listed(others)} belong as well; elements of one family stand one "
            "below the other, and they behave alike in many ways. "
            if family
            else "Elements that stand one below the other in the table form a group, and those of one group often "
            "behave alike. "
        )
        + f"At room temperature and the usual pressure of the air, {name} is {state}. Of the {len(ELEMENTS) - 1} "
        f"elements from hydrogen to krypton, {len(GASES)} are gases and one, bromine, is a liquid; the others are "
        "solids."
    )
