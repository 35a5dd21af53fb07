"""Grammar, instructions and preferences: one question each."""

from collections.abc import Iterator
from datetime import date, timedelta

from parts import CAPITALS, GOODS, JOBS, PASTIMES, PEOPLE, UNITS, WORDS, euros, listed, mistake, pick, weekday, written


def grammar() -> Iterator[dict]:
    """Sentences with one mistake, and without it."""
    for number in range(400):
        wrong, right, _ = mistake(number)
        yield {"input": wrong, "output": right}


def instructions() -> Iterator[dict]:
    """Small tasks that have one right answer."""
    makers = [shopping_task, unit_task, date_task, capital_task, words_task, numbers_task, percent_task, notes_task]
    for number in range(320):
        instruction, given, output = makers[number % 8](number // 8)
        yield {"instruction": instruction, "input": given, "output": output}


def shopping_task(k: int) -> tuple[str, str, str]:
    """Compute change."""
    name, goods, count, price = pick(PEOPLE, k), pick(GOODS, k), 3 + k, 2 + k % 7
    total = count * price
    paid = total // 50 * 50 + 50
    return (
        "Solve the problem and show each step in a full sentence.",
        f"{name} buys {count} {goods} at {euros(price)} each and pays with {euros(paid)}. How much change is there?",
        f"The {count} {goods} cost {count} × {price} = {euros(total)} together. {name} pays with {euros(paid)}, and "
        f"{paid} − {total} = {paid - total}. So {name} gets {euros(paid - total)} back.",
    )


def unit_task(k: int) -> tuple[str, str, str]:
    """Convert a quantity."""
    greater, one, smaller, factor = pick(UNITS, k)
    count = 2 + k
    return (
        "Convert the quantity and explain in a sentence or two how the units are related.",
        f"{count} {greater} in {smaller}",
        f"One {one} has {factor} {smaller}, so the number of {greater} is multiplied by {factor}. {count} × {factor} "
        f"= {count * factor}, and {count} {greater} are {count * factor} {smaller}.",
    )


def date_task(k: int) -> tuple[str, str, str]:
    """Name a day of the week."""
    day = date(1990, 1, 15) + timedelta(days=397 * k)
    return (
        "On which day of the week does this date fall? Name the days before and after it as well.",
        written(day),
        f"{written(day)} falls on a {weekday(day)}. The day before, {written(day - timedelta(1))}, is a "
        f"{weekday(day - timedelta(1))}, and the day after, {written(day + timedelta(1))}, is a "
        f"{weekday(day + timedelta(1))}.",
    )


def capital_task(k: int) -> tuple[str, str, str]:
    """Name a capital."""
    country, capital, continent = pick(CAPITALS, k)
    return (
        f"Name the capital of {country}, say on which continent the country lies, and write the sentence with which a "
        "postcard from there could begin.",
        "",
        f"The capital of {country} is {capital}, and the country lies in {continent}. A postcard could begin like "
        f"this: “Dear {pick(PEOPLE, k)}, greetings from {capital}, where we have been walking around since this "
        "morning!”",
    )


def words_task(k: int) -> tuple[str, str, str]:
    """Sort words."""
    words = [pick(WORDS, k * 3 + step * (7 + k // 23)) for step in range(6)]
    length = max(len(word) for word in words)
    longest = sorted(word for word in words if len(word) == length)
    found = f"The longest word is {longest[0]}" if len(longest) == 1 else f"The longest words are {listed(longest)}"
    return (
        "Put the words into alphabetical order and say which is the longest, and how many letters it has.",
        ", ".join(words),
        f"In alphabetical order the words are {listed(sorted(words))}. {found}, with {length} letters.",
    )


def numbers_task(k: int) -> tuple[str, str, str]:
    """Compute a sum, an average and a range."""
    first, step = 4 + 3 * k, 2 + k % 5
    numbers = [first + step * place for place in (3, 0, 4, 1, 2)]
    return (
        "Find the sum, the average and the range of the numbers, and say how you found them.",
        ", ".join(map(str, numbers)),
        f"The sum is {' + '.join(map(str, numbers))} = {sum(numbers)}. There are 5 numbers, so the average is "
        f"{sum(numbers)} ÷ 5 = {sum(numbers) // 5}. The range is the largest less the smallest number: {max(numbers)} "
        f"− {min(numbers)} = {max(numbers) - min(numbers)}.",
    )


def percent_task(k: int) -> tuple[str, str, str]:
    """Compute a percentage."""
    percent, whole = pick([5, 10, 20, 25, 50, 75], k), 100 * (k + 2)
    part = percent * whole // 100
    return (
        f"What is {percent} percent of {whole}? Give the result first and then the way to it.",
        "",
        f"It is {part}. One percent of {whole} is {whole} ÷ 100 = {whole // 100}, and {percent} percent are {percent} "
        f"times as much: {percent} × {whole // 100} = {part}. The rest, {100 - percent} percent, is {whole} − {part} "
        f"= {whole - part}.",
    )


def notes_task(k: int) -> tuple[str, str, str]:
    """Write sentences out of notes."""
    name, city, job, pastime, year = (
        pick(PEOPLE, k * 3),
        pick(CAPITALS, k * 2)[1],
        pick(JOBS, k),
        pick(PASTIMES, k),
        1998 + k % 26,
    )
    return (
        "Turn the notes into two full sentences, and leave nothing out.",
        f"name: {name}; home: {city}; work: {job.split()[1]} since {year}; evenings: {pastime}",
        f"{name} lives in {city} and has worked as {job} since {year}. In the evenings {name} likes to {pastime}.",
    )


def preferences() -> Iterator[dict]:
    """Questions with a good answer and one that is wrong or of no help."""
    makers = [product_pair, capital_pair, unit_pair, date_pair, advice_pair, correction_pair]
    for number in range(300):
        question, good, bad = makers[number % 6](number // 6)
        asked = {"role": "user", "content": question}
        yield {
            "chosen": [asked, {"role": "assistant", "content": good}],
            "rejected": [asked, {"role": "assistant", "content": bad}],
        }


def product_pair(k: int) -> tuple[str, str, str]:
    """Compute a product."""
    a, b = 21 + k, 4 + k % 6
    off = a * b + pick([1, 10, -2, b, -10], k)
    return (
        f"What is {a} times {b}, and how do I get there without a calculator?",
        f"{a} times {b} is {a * b}. Split {a} into {a // 10 * 10} and {a % 10}: {a // 10 * 10} × {b} = "
        f"{a // 10 * 10 * b} and {a % 10} × {b} = {a % 10 * b}, which sum to {a * b}.",
        f"{a} times {b} is {off}. That is simply how it is, and nobody needs to know more about it.",
    )


def capital_pair(k: int) -> tuple[str, str, str]:
    """Name a capital."""
    country, capital, continent = pick(CAPITALS, k * 3 + 1 + k // 47)
    _, wrong, _ = pick(CAPITALS, k * 3 + 5 + k // 47)
    name = pick(PEOPLE, k)
    return (
        f"{name} asks: what is the capital of {country}?",
        f"The capital of {country} is {capital}. The country lies in {continent}.",
        f"The capital of {country} is {wrong}. I am quite sure of it.",
    )


def unit_pair(k: int) -> tuple[str, str, str]:
    """Convert a quantity."""
    greater, one, smaller, factor = pick(UNITS, k)
    count = 3 + k
    return (
        f"How many {smaller} are {count} {greater}?",
        f"{count} {greater} are {count * factor} {smaller}, since one {one} has {factor} {smaller} and {count} × "
        f"{factor} = {count * factor}.",
        f"{count} {greater} are {count + factor} {smaller}, since {count} + {factor} = {count + factor}.",
    )


def date_pair(k: int) -> tuple[str, str, str]:
    """Name a day of the week."""
    day = date(2001, 5, 4) + timedelta(days=211 * k)
    return (
        f"Which day of the week is {written(day)}?",
        f"{written(day)} is a {weekday(day)}; a week later, on {written(day + timedelta(7))}, it is a {weekday(day)} "
        "again.",
        f"{written(day)} is a {weekday(day + timedelta(1 + k % 5))}, I think, or perhaps some other day.",
    )


ADVICE = [
    (
        "learn to cook",
        "Begin with three dishes that you like to eat, and cook each of them every week. Change one thing at a time.",
    ),
    (
        "sleep better",
        "Go to bed at the same time every day, keep the room dark and cool, and leave the telephone outside.",
    ),
    (
        "remember names",
        "Repeat the name when you hear it, connect it with a picture, and write it down in the evening.",
    ),
    (
        "run five kilometres",
        "Run slowly, three times a week, with breaks to walk. Add a few minutes each week, and rest between.",
    ),
    (
        "write a report",
        "List the questions it must answer, note one sentence for each, and only then write it out in full.",
    ),
    (
        "keep a plant alive",
        "Put it where it gets light but no midday sun, and water it when the top of the soil feels dry.",
    ),
    ("save money", "Write down for a month what you spend, choose one thing to cut, and set the sum aside on payday."),
    (
        "speak in front of people",
        "Practise aloud, learn the first two sentences by heart, and look at one friendly face first.",
    ),
    (
        "tidy the cellar",
        "Take one shelf at a time, and sort things into keep, give away and throw away before you clean.",
    ),
    (
        "learn a language",
        "Practise for twenty minutes every day rather than for three hours on Sunday, and speak from the first week "
        "on.",
    ),
]
SHRUGS = [
    "That cannot be learned.",
    "Just do it somehow; it will work out or it will not.",
    "I would not bother. There are more important things, but I do not know which.",
    "Ask somebody else, please.",
    "Everybody knows that, so there is nothing to say about it.",
    "Do everything at once and as fast as you can, and then do it again.",
    "It depends on a great many things, which nobody can list.",
]


def advice_pair(k: int) -> tuple[str, str, str]:
    """Give advice."""
    wish, advice = pick(ADVICE, k)
    name = pick(PEOPLE, k * 2 + k // 10)
    return (
        f"{name} would like to {wish} and does not know how to begin. What would you advise?",
        f"{name} should take small steps. {advice}",
        pick(SHRUGS, k),
    )


def correction_pair(k: int) -> tuple[str, str, str]:
    """Correct a sentence."""
    wrong, right, rule = mistake(240 + k)
    return (
        f"Please correct this sentence: “{wrong}”",
        f"It should read: “{right}” {rule}",
        f"There is nothing to correct. It should read: “{wrong}”",
    )
