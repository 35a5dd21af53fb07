"""Chats and summaries: conversations."""

import math
from collections.abc import Iterator
from datetime import date, timedelta

from parts import CAPITALS, DAYS, PEOPLE, clock, mistake, pick, weekday, written


def chats() -> Iterator[dict]:
    """Conversations of two to four questions and answers."""
    makers = [travel_chat, tables_chat, kitchen_chat, trains_chat, spelling_chat]
    for number in range(300):
        turns = makers[number % 5](number // 5)[: 2 + number % 3]
        messages = [("system", "You are a patient tutor who answers briefly.")] if number % 4 == 0 else []
        for question, answer in turns:
            messages += [("user", question), ("assistant", answer)]
        yield {"messages": [{"role": role, "content": content} for role, content in messages]}


def travel_chat(k: int) -> list[tuple[str, str]]:
    """Ask about a country."""
    country, capital, continent = pick(CAPITALS, k * 2 + k // 47)
    others = [entry for entry in CAPITALS if entry[2] == continent and entry[0] != country]
    (near, near_capital, _), (far, far_capital, _) = pick(others, k), pick(others, k + 1)
    day, nights = date(2027, 3, 1) + timedelta(days=11 * k), 3 + k % 6
    return [
        (f"I am planning a trip to {country}. What is its capital?", f"The capital of {country} is {capital}."),
        (
            "Which continent is that, and what else could I see there?",
            f"{country} lies in {continent}. Two other capitals there are {near_capital} in {near} and {far_capital} "
            f"in {far}.",
        ),
        (
            f"We would arrive on {written(day)} and stay {nights} nights. When do we leave?",
            f"You would leave on {written(day + timedelta(nights))}. You arrive on a {weekday(day)} and leave on a "
            f"{weekday(day + timedelta(nights))}.",
        ),
        (
            f"The flight takes {2 + k % 9} hours. How many minutes is that?",
            f"An hour has 60 minutes, so {2 + k % 9} hours are {2 + k % 9} × 60 = {60 * (2 + k % 9)} minutes.",
        ),
    ]


def tables_chat(k: int) -> list[tuple[str, str]]:
    """Practise multiplication."""
    a, b = 12 + k, 3 + k % 7
    tens, ones = a // 10 * 10, a % 10
    parts = f"{tens} × {b} = {tens * b}" + (f" and {ones} × {b} = {ones * b}" if ones else "")
    joined = f" Together that makes {tens * b} + {ones * b} = {a * b}." if ones else ""
    return [
        (f"Can you help me to work out {a} × {b} in my head?", f"Gladly. Take the tens first: {parts}.{joined}"),
        (f"So the answer is {a * b}?", f"Yes, {a} × {b} = {a * b}."),
        (
            "How can I check it?",
            f"Go backwards: {a * b} ÷ {b} = {a}. If you come back to {a}, the product was right.",
        ),
        (
            f"And what is {a + 1} × {b}, then?",
            f"Just one {b} more: {a * b} + {b} = {(a + 1) * b}.",
        ),
    ]


def kitchen_chat(k: int) -> list[tuple[str, str]]:
    """Scale a recipe."""
    dish = pick(["pancakes", "an apple cake", "dumplings", "waffles", "noodles", "a plum cake"], k)
    flour, guests = 50 + 10 * (k % 8), 5 + k % 11
    bags = math.ceil(guests * flour / 500)
    start, bake = 17 * 60 + 5 * (k % 13), 25 + 5 * (k % 7)
    return [
        (
            f"My recipe for {dish} takes {4 * flour} grams of flour for 4 people. We are {guests}. How much do I need?",
            f"For one person it is {4 * flour} ÷ 4 = {flour} grams, so for {guests} people you need {guests} × "
            f"{flour} = {guests * flour} grams of flour.",
        ),
        (
            f"I begin at {clock(start)}, and it takes {bake} minutes. When can we eat?",
            f"{bake} minutes after {clock(start)} it is {clock(start + bake)}, so you can eat then.",
        ),
        (
            f"Flour comes in bags of 500 grams. How many bags is that for the {guests * flour} grams?",
            f"You need {bags} bag{'s' * (bags > 1)}, with {bags * 500} grams. One fewer would not be enough.",
        ),
        (
            "What should I do first?",
            "Weigh everything, set it out in the order in which you need it, and only then begin to cook. So nothing "
            "is forgotten, and nothing burns while you look for it.",
        ),
    ]


def trains_chat(k: int) -> list[tuple[str, str]]:
    """Read a timetable."""
    leaves, ride, wait, second = 6 * 60 + 13 * k, 35 + 7 * (k % 9), 6 + k % 12, 20 + 3 * (k % 15)
    there = leaves + ride
    arrives = there + wait + second
    name = pick(PEOPLE, k)
    return [
        (
            f"My train leaves at {clock(leaves)} and takes {ride} minutes. When am I there?",
            f"{ride} minutes after {clock(leaves)} it is {clock(there)}.",
        ),
        (
            f"Then I have {wait} minutes to change. When does the next train go?",
            f"You arrive at {clock(there)}, so {wait} minutes later it goes at {clock(there + wait)}.",
        ),
        (
            f"That one takes {second} minutes. When can {name} fetch me?",
            f"The second train arrives at {clock(arrives)}, so {name} can be at the platform then.",
        ),
        (
            "How long do I travel in all?",
            f"{ride} minutes, {wait} minutes of waiting and {second} minutes make {arrives - leaves} minutes, from "
            f"{clock(leaves)} to {clock(arrives)}.",
        ),
    ]


def spelling_chat(k: int) -> list[tuple[str, str]]:
    """Correct sentences, and say why."""
    turns = []
    for step in range(4):
        wrong, right, rule = mistake(k * 4 + step)
        opening = ["Is this sentence right?", "And this one?", "Then what about this?", "One more, please:"][step]
        turns.append((f"{opening} “{wrong}”", f"Not quite. {rule} So it should read: “{right}”"))
    return turns


def summaries() -> Iterator[dict]:
    """Dialogues of two people, and what they come to."""
    makers = [meeting_talk, lift_talk, book_talk, party_talk, shopping_talk, bicycle_talk]
    for number in range(288):
        one, other = pick(PEOPLE, number), pick(PEOPLE, number + 3 + number % 7)
        lines, summary = makers[number % 6](number // 6, one, other)
        before, after = pick(OPENINGS, number), pick(ENDINGS, number // 6)
        talk = [*before, *lines, *after]
        speakers = [f"{one if turn % 2 == 0 else other}: {line}" for turn, line in enumerate(talk)]
        yield {"dialogue": "\n".join(speakers), "summary": summary}


OPENINGS = [
    [],
    ["Hello! Do you have a minute?", "Of course. What is it?"],
    ["Good morning! How are you?", "Very well, thank you. And you?"],
    [],
    ["Are you there?", "Yes, go ahead."],
]
ENDINGS = [
    ["Thank you, that helps me a lot!", "You are welcome."],
    ["Perfect, then that is settled.", "See you then!"],
    ["Great!", "Until then!", "Take care!", "You too!"],
]


def meeting_talk(k: int, one: str, other: str) -> tuple[list[str], str]:
    """Find a time to meet."""
    day, first, second = pick(DAYS, k), 9 + k % 5, 15 + k % 4
    place = pick(["at the library", "in the park", "at the café by the station", "at the museum", "in my office"], k)
    where = place.replace("my office", f"the office of {one}")
    subject = pick(["the project", "the holiday plans", "the school play", "the garden"], k)
    lines = [
        f"Could we talk about {subject} on {day}? I am free at {first}:00.",
        f"At {first}:00 I am at the dentist's. What about {second}:00?",
        f"That suits me. Shall we meet {place}?",
        "Yes, I know the way. Should I bring anything?",
        "Only your notes, please.",
        "I have them already.",
    ]
    return lines, f"{one} and {other} will meet {where} on {day} at {second}:00 to talk about {subject}."


def lift_talk(k: int, one: str, other: str) -> tuple[list[str], str]:
    """Ask for a lift."""
    city, day, leaves = pick(CAPITALS, k)[1], pick(DAYS, k + 3), 7 * 60 + 20 * (k % 11)
    lines = [
        f"My car is in the workshop, and on {day} I have to catch the train to {city}.",
        "When does it leave?",
        f"At {clock(leaves)}. Could you drive me to the station?",
        f"I can. It takes half an hour, so I will be with you at {clock(leaves - 45)}.",
        "Then I have a quarter of an hour to buy a newspaper.",
        "And a coffee for the way.",
    ]
    return lines, (
        f"{other} will fetch {one} at {clock(leaves - 45)} on {day}, so that {one} catches the {clock(leaves)} train "
        f"to {city}."
    )


def book_talk(k: int, one: str, other: str) -> tuple[list[str], str]:
    """Lend a book."""
    subject = pick(["sailing", "Roman roads", "mushrooms", "the history of clocks", "bees", "lighthouses", "maps"], k)
    pages, back = 180 + 12 * k, pick(DAYS, k + 5)
    lines = [
        f"Did you not have a book about {subject}?",
        f"Yes, it stands on my shelf. It has {pages} pages, though.",
        "That does not frighten me. May I borrow it?",
        f"You may, if I have it back by {back}. I promised it to my sister.",
        "I read fast. I will bring it back in time.",
        "Then I will put it into your letter box tonight.",
    ]
    return lines, f"{other} lends {one} a book about {subject}, which {one} will return by {back}."


def party_talk(k: int, one: str, other: str) -> tuple[list[str], str]:
    """Plan a party."""
    guests, day, dish = 8 + k % 19, pick(DAYS[4:], k), pick(["a salad", "bread", "a cake", "lemonade", "cheese"], k)
    age = 20 + k
    lines = [
        f"I turn {age} this week. On {day} I am giving a party.",
        "How lovely! How many are coming?",
        f"{guests} people, if everybody comes. You are invited, of course.",
        f"I will be there. Can I bring something, {dish} perhaps?",
        "Gladly, that is just what is missing.",
        "Then you need not worry about it any more.",
    ]
    return lines, (
        f"{one} is giving a party for {guests} people on {day} to celebrate turning {age}, and {other} will bring "
        f"{dish}."
    )


def shopping_talk(k: int, one: str, other: str) -> tuple[list[str], str]:
    """Ask somebody to buy things."""
    goods = [
        pick(["milk", "rice", "onions", "butter", "tea", "flour", "apples", "salt"], k * 3 + step) for step in range(3)
    ]
    shop = pick(["the market", "the corner shop", "the supermarket"], k)
    lines = [
        f"Are you still at {shop}?",
        "Yes, I am standing in front of the shelves. Do we need anything?",
        f"We are out of {goods[0]} and {goods[1]}.",
        f"I have the {goods[0]} already. Do we need a lot of the other?",
        f"Enough {goods[1]} for the week. And {goods[2]}, if there is room in the bag.",
        f"There is. I will be home in {10 + k} minutes.",
    ]
    return lines, (
        f"{other} is at {shop}, will buy {goods[0]}, {goods[1]} and {goods[2]} as {one} asks, and will be home in "
        f"{10 + k} minutes."
    )


def bicycle_talk(k: int, one: str, other: str) -> tuple[list[str], str]:
    """Repair a bicycle."""
    part = pick(["front tyre", "back tyre", "chain", "front light", "brake"], k)
    day, time = pick(DAYS, k * 2), 10 + k % 8
    lines = [
        f"The {part} of my bicycle is broken, and the shop has no time for it.",
        "That can be mended at home. Do you have tools?",
        "A screwdriver, and that is all.",
        f"Then I will come by on {day} at {time}:00 and bring mine.",
        "Would you really? I will cook lunch for us.",
        "That is a good bargain.",
    ]
    return lines, f"{other} will come on {day} at {time}:00 to help {one} mend the {part} of the bicycle."
