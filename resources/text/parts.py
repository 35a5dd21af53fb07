"""Words, facts and sentences that the texts are made of."""

from datetime import date


def words(text: str) -> list[str]:
    """Take a text apart."""
    return text.split()


PEOPLE = words(
    "Ada Ben Carla David Elena Felix Grace Hugo Ines Jonas Kira Leo Maria Nils Olga Paul Rosa Simon Tara Umar Vera "
    "Wim Zoe"
)
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")

WORLD = """
    France:Paris:Europe; Japan:Tokyo:Asia; Egypt:Cairo:Africa; Canada:Ottawa:North America; Peru:Lima:South America;
    Germany:Berlin:Europe; China:Beijing:Asia; Kenya:Nairobi:Africa; Mexico:Mexico City:North America; Argentina:Buenos
    Aires:South America; Italy:Rome:Europe; India:New Delhi:Asia; Ghana:Accra:Africa; Cuba:Havana:North America;
    Uruguay:Montevideo:South America; Spain:Madrid:Europe; Thailand:Bangkok:Asia; Morocco:Rabat:Africa;
    Jamaica:Kingston:North America; Ecuador:Quito:South America; Portugal:Lisbon:Europe; Vietnam:Hanoi:Asia;
    Tunisia:Tunis:Africa; Austria:Vienna:Europe; Brazil:Brasília:South America; Poland:Warsaw:Europe;
    Mongolia:Ulaanbaatar:Asia; Senegal:Dakar:Africa; Greece:Athens:Europe; Colombia:Bogotá:South America;
    Norway:Oslo:Europe; Nepal:Kathmandu:Asia; Ethiopia:Addis Ababa:Africa; Sweden:Stockholm:Europe;
    Paraguay:Asunción:South America; Finland:Helsinki:Europe; Jordan:Amman:Asia; Uganda:Kampala:Africa;
    Denmark:Copenhagen:Europe; Oman:Muscat:Asia; Ireland:Dublin:Europe; Hungary:Budapest:Europe;
    Belgium:Brussels:Europe; South Korea:Seoul:Asia; Bulgaria:Sofia:Europe; Romania:Bucharest:Europe;
    Iceland:Reykjavik:Europe
"""
CAPITALS = [" ".join(entry.split()).split(":") for entry in WORLD.split(";")]  # country, capital, continent

# The greater unit, one of it, the smaller unit, and how many of the smaller make one of the greater.
UNITS = [
    ("kilometres", "kilometre", "metres", 1000),
    ("hours", "hour", "minutes", 60),
    ("kilograms", "kilogram", "grams", 1000),
    ("weeks", "week", "days", 7),
    ("metres", "metre", "centimetres", 100),
    ("minutes", "minute", "seconds", 60),
    ("litres", "litre", "millilitres", 1000),
    ("days", "day", "hours", 24),
    ("feet", "foot", "inches", 12),
    ("tonnes", "tonne", "kilograms", 1000),
    ("yards", "yard", "feet", 3),
]

GOODS = words("notebooks pencils mugs plates towels candles baskets cushions brushes lamps umbrellas scarves kites")
WORDS = words(
    "river lantern apple mountain bridge coffee window garden ticket violin harbour pepper castle marble engine "
    "orchard planet saddle thunder kitchen basket needle island"
)
BELONGINGS = words("violin clock bicycle lamp coat camera ladder")
JOBS = ["a teacher", "an engineer", "a baker", "a nurse", "an architect", "a librarian", "a gardener"]
PASTIMES = ["play chess", "paint", "cycle along the river", "bake bread", "sing in a choir"]

# Base, third person, past, participle, and what it is done to.
VERBS = [
    ("write", "writes", "wrote", "written", "a letter"),
    ("take", "takes", "took", "taken", "the early train"),
    ("eat", "eats", "ate", "eaten", "a bowl of soup"),
    ("drive", "drives", "drove", "driven", "the old van"),
    ("choose", "chooses", "chose", "chosen", "the green coat"),
    ("draw", "draws", "drew", "drawn", "a map of the town"),
    ("give", "gives", "gave", "given", "a short talk"),
    ("sing", "sings", "sang", "sung", "a folk song"),
    ("grow", "grows", "grew", "grown", "tomatoes"),
    ("wear", "wears", "wore", "worn", "a woollen hat"),
    ("break", "breaks", "broke", "broken", "a cup"),
]


def pick(options, number):
    """Take the option that is a number's turn."""
    return options[number % len(options)]


def euros(amount: int) -> str:
    """Write an amount of money."""
    return f"{amount} euro{'s' * (amount != 1)}"


def clock(minutes: int) -> str:
    """Write a time of day, given in minutes after midnight."""
    return f"{minutes // 60 % 24}:{minutes % 60:02}"


def written(day: date) -> str:
    """Write a date."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def weekday(day: date) -> str:
    """Name the day of the week."""
    return DAYS[day.weekday()]


def listed(things: list) -> str:
    """Join things as a sentence does."""
    *others, last = map(str, things)
    return f"{', '.join(others)} and {last}" if others else last


def mistake(number: int) -> tuple[str, str, str]:
    """Give a sentence with one mistake, the right sentence, and the rule."""
    base, third, past, participle, thing = pick(VERBS, number // 8)
    name, other, day = pick(PEOPLE, number), pick(PEOPLE, number + 1 + number // 23), pick(DAYS, number // 3)
    goods, belonging, count = pick(GOODS, number), pick(BELONGINGS, number), 2 + number % 17
    return [
        (
            f"{name} {base} {thing} every {day}.",
            f"{name} {third} {thing} every {day}.",
            "With he, she, it or one name, a verb in the present tense ends in s.",
        ),
        (
            f"Last {day} {name} {third} {thing}.",
            f"Last {day} {name} {past} {thing}.",
            "What happened at a time that is over stands in the past tense.",
        ),
        (
            f"{name} has {past} {thing} before.",
            f"{name} has {participle} {thing} before.",
            "After has comes the participle, not the past tense.",
        ),
        (
            f"{name} and {other} {third} {thing} on {day}s.",
            f"{name} and {other} {base} {thing} on {day}s.",
            "Two people take the verb without s.",
        ),
        (
            f"{name} do not {base} {thing} on a {day}.",
            f"{name} does not {base} {thing} on a {day}.",
            "One person takes does, not do.",
        ),
        (
            f"There is {count} {goods} on the table beside {name}.",
            f"There are {count} {goods} on the table beside {name}.",
            "More than one thing takes are.",
        ),
        (
            f"{name} says that this {belonging} is more older than that of {other}.",
            f"{name} says that this {belonging} is older than that of {other}.",
            "A comparison takes more or the ending er, never both.",
        ),
        (
            f"On {day} {name} did not {past} {thing}.",
            f"On {day} {name} did not {base} {thing}.",
            "After did not comes the plain form of the verb.",
        ),
    ][number % 8]
