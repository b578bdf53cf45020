"""The tools, the directory and the 50 questions that tool_calls.py asks. People and addresses are invented, so that only the text tells them."""


def tool(name, description, required, **properties):
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def text(description, **more):
    return {"type": "string", "description": description, **more}


def number(description):
    return {"type": "number", "description": description}


def whole(description):
    return {"type": "integer", "description": description}


TOOLS = [
    tool("get_weather", "The weather in a city", ["city"], city=text("the city's name")),
    tool("convert_currency", "Converts an amount of money", ["amount", "source", "target"], amount=number("how much"),
         source=text("three-letter code of the currency to convert from", enum=["EUR", "USD", "GBP", "JPY", "CHF"]),
         target=text("three-letter code of the currency to convert to", enum=["EUR", "USD", "GBP", "JPY", "CHF"])),
    tool("set_timer", "Starts a timer", ["minutes"], minutes=whole("how long")),
    tool("send_email", "Sends an e-mail", ["address", "subject"], address=text("the e-mail address"), subject=text("the subject")),
    tool("translate", "Translates a word", ["word", "language"], word=text("the word"), language=text("the language to translate to")),
    tool("play_song", "Plays music", ["title"], title=text("the song's title")),
    tool("call_extension", "Calls a telephone extension in the house", ["extension"], extension=whole("the extension's number")),
    tool("book_table", "Books a table in a restaurant", ["restaurant", "people"], restaurant=text("its name"), people=whole("how many come")),
]

# Name, e-mail address, telephone extension: it stands in the middle of the text.
DIRECTORY = [
    ("Anna Berg", "anna.berg@harlow.example", 4417), ("Tomas Quill", "t.quill@harlow.example", 2093), ("Mira Okafor", "mira@harlow.example", 7751),
    ("Jonas Feld", "jfeld@harlow.example", 3128), ("Lea Santori", "santori@harlow.example", 9064), ("Pavel Dunn", "pavel.d@harlow.example", 1586),
    ("Ines Carrow", "ines.c@harlow.example", 6230), ("Oskar Lindt", "olindt@harlow.example", 8345), ("Ruth Ames", "ruth@harlow.example", 5519),
    ("Viktor Hale", "v.hale@harlow.example", 2874),
]


def _weather(city, question):
    return question, "get_weather", {"city": city}


def _convert(amount, source, target, question):
    return question, "convert_currency", {"amount": amount, "source": source, "target": target}


QUESTIONS = [
    _weather("Paris", "What is the weather in Paris?"),
    _weather("Oslo", "Do I need an umbrella in Oslo? Get the weather there."),
    _weather("Nairobi", "How warm is it in Nairobi now?"),
    _weather("Lima", "Tell me the weather in Lima."),
    _weather("Tokyo", "Is it raining in Tokyo? Look up the weather."),
    _convert(100, "EUR", "USD", "How many dollars (USD) are 100 euros (EUR)?"),
    _convert(25, "GBP", "EUR", "Convert 25 GBP to EUR."),
    _convert(5000, "JPY", "CHF", "Convert 5000 JPY to CHF."),
    _convert(12.5, "USD", "JPY", "Convert 12.5 USD to JPY, please."),
    _convert(80, "CHF", "GBP", "What are 80 CHF in GBP?"),
    ("Set a timer for 5 minutes.", "set_timer", {"minutes": 5}),
    ("Start a timer of 25 minutes.", "set_timer", {"minutes": 25}),
    ("Wake me in 40 minutes with a timer.", "set_timer", {"minutes": 40}),
    ("The eggs take 9 minutes: set the timer.", "set_timer", {"minutes": 9}),
    ("Set the timer to 90 minutes.", "set_timer", {"minutes": 90}),
    ("Translate the word \"bread\" to French.", "translate", {"word": "bread", "language": "French"}),
    ("What is the word \"window\" in Spanish? Translate it.", "translate", {"word": "window", "language": "Spanish"}),
    ("Translate \"cloud\" to German.", "translate", {"word": "cloud", "language": "German"}),
    ("Translate the word \"river\" to Italian.", "translate", {"word": "river", "language": "Italian"}),
    ("Translate \"snow\" to Finnish.", "translate", {"word": "snow", "language": "Finnish"}),
    ("Play the song Yesterday.", "play_song", {"title": "Yesterday"}),
    ("Play Imagine.", "play_song", {"title": "Imagine"}),
    ("I want to hear the song Waterloo. Play it.", "play_song", {"title": "Waterloo"}),
    ("Play the song Hallelujah, please.", "play_song", {"title": "Hallelujah"}),
    ("Book a table for 4 people at the restaurant Roma.", "book_table", {"restaurant": "Roma", "people": 4}),
    ("Book a table for 2 people at the restaurant Lotus.", "book_table", {"restaurant": "Lotus", "people": 2}),
    ("Reserve a table at the restaurant Bellevue for 7 people.", "book_table", {"restaurant": "Bellevue", "people": 7}),
    ("Book a table for 3 people in the restaurant Harbour.", "book_table", {"restaurant": "Harbour", "people": 3}),
    ("A table for 10 people at the restaurant Olive, please: book it.", "book_table", {"restaurant": "Olive", "people": 10}),
    ("Book a table for 6 people at the restaurant Sakura.", "book_table", {"restaurant": "Sakura", "people": 6}),
    *((f"Call the telephone extension of {name}.", "call_extension", {"extension": extension}) for name, _, extension in DIRECTORY),
    *((f"Send an e-mail with the subject \"Lunch\" to {name}.", "send_email", {"address": address, "subject": "Lunch"}) for name, address, _ in DIRECTORY),
]


def document(article):
    """An article with the directory in its middle."""
    middle = article.index(". ", len(article) // 2) + 2
    lines = "\n".join(f"{name}: e-mail {address}, extension {extension}" for name, address, extension in DIRECTORY)
    return f"{article[:middle]}\n\nDirectory of the house:\n{lines}\n\n{article[middle:]}"


def _same(wanted, got):
    if isinstance(wanted, str) and isinstance(got, str):
        return wanted.casefold() == got.strip().casefold()
    return type(got) in (int, float) and float(got) == float(wanted) if not isinstance(wanted, str) else False


def arguments_right(wanted, got):
    return sorted(wanted) == sorted(got) and all(_same(wanted[name], got[name]) for name in wanted)
