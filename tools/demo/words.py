"""Pools of words for the generated documents."""


def _pool(text: str) -> tuple[str, ...]:
    """Split a comma-separated list; keep the order and drop repetitions."""
    return tuple(dict.fromkeys(" ".join(word.split()) for word in text.split(",") if word.strip()))


CITIES = _pool("""Miami, Paris, London, Berlin, Madrid, Rome, Vienna, Oslo, Lisbon, Dublin, Prague, Warsaw, Athens,
    Cairo, Tokyo, Kyoto, Osaka, Seoul, Beijing, Delhi, Mumbai, Sydney, Melbourne, Auckland, Toronto, Montreal,
    Chicago, Boston, Seattle, Denver, Dallas, Houston, Austin, Atlanta, Orlando, Lima, Bogota, Santiago, Havana,
    Zurich, Geneva, Basel, Milan, Venice, Naples, Florence, Munich, Hamburg, Cologne, Lyon, Nice, Porto, Seville,
    Valencia, Krakow, Budapest, Istanbul, Dubai, Nairobi, Tunis, Helsinki, Stockholm, Copenhagen, Brussels,
    Amsterdam, Rotterdam, Singapore, Bangkok, Hanoi, Manila, Jakarta, Barcelona, New York, Los Angeles, San
    Francisco, Las Vegas, Cape Town, Rio, Salt Lake City, Hong Kong, New Orleans, San Diego, Buenos Aires, Mexico
    City, Tel Aviv, Maui, Reykjavik, Marseille, Turin""")
COUNTRIES = _pool("""Germany, France, Spain, Italy, Portugal, Poland, Austria, Norway, Sweden, Finland, Denmark,
    Ireland, Greece, Turkey, Egypt, Morocco, Kenya, Ghana, India, China, Japan, Korea, Vietnam, Thailand, Brazil,
    Chile, Peru, Mexico, Canada, Cuba, Iceland, Hungary, Romania, Croatia, Belgium, Holland, Switzerland, Australia,
    New Zealand, South Africa, Costa Rica, Sri Lanka, Saudi Arabia, the United States, the United Kingdom,
    Argentina, Ukraine""")
PRODUCTS = _pool("""the basic plan, the free plan, the pro plan, the premium plan, the team plan, the family plan,
    the business plan, the student plan, the red bag, the blue lamp, the green chair, the small table, the large
    desk, the kitchen scale, the coffee machine, the water filter, the phone, the laptop, the tablet, the printer,
    the camera, the router, the headset, the keyboard, the monitor, the watch, the speaker, the bike, the tent, the
    backpack, the trip, the journey, the tour, the order, the invoice, the shop, the office, the hotel, the garden,
    the museum, the library, the school, the team, the project, the server, the website, the app, the first floor,
    the second floor, the account, the ticket, the warehouse, the train, the ferry, the flight, the weekend, the
    conference, the workshop, Basic, Standard, Premium, Business, Enterprise, Starter, Gold, Silver, Platinum, Model
    A, Model B, Model X, Plan A, Plan B, Series Three, Kettle One, Photo Max, Cloud Drive, Smart Lamp, Power Bank,
    Air Fryer""")
TOPICS = _pool("""refund, invoice, password, login, delivery, payment, shipping, return, billing, upgrade, discount,
    coupon, warranty, repair, damage, delay, account, email, crash, update, error, receipt, address, order, card,
    exchange, tax, fee, printer, network, screen, battery, cable, sound, language, privacy, security, backup,
    subscription, renewal, football, tennis, opera, election, market, weather, recipe, movie, rocket, vaccine,
    guitar, bank, novel, painting""")
PEOPLE = _pool("""Anna, Ben, Clara, David, Emma, Frank, Grace, Henry, Ivan, Julia, Karl, Laura, Marco, Nina, Oscar,
    Paula, Robert, Sara, Thomas, Victor, Maria, Peter, Lucas, Sofia, Alice, Bob, Carol, Daniel, Elena, Felix, Maya,
    Noah, Olivia, Paul, Rita, Simon, Tina, Walter, Yusuf, Zoe, Anna Berg, John Smith, Maria Lopez, Peter Stone,
    Julia Wolf, Tom Hill, Omar Khan, Lucy Chen, Ada Lovelace, Alan Turing""")
ATTRIBUTES = _pool("""airport, best dish, main street, mayor, population, river, oldest bridge, best beach, local
    beer, famous museum, main station, best hotel, best month, weather, language, currency, capital, area code, time
    zone, best restaurant, cheapest hotel, tallest building, market day, metro line, bus line, ferry port, main
    square, old town, favorite sport, national dish, best view, entry fee, opening hour, closing time, ticket price,
    guide, nearest beach, refund window, return window, return policy, delivery time, shipping fee, shipping time,
    delivery fee, support hours, support email, support phone, phone number, contact, manager, owner, price, monthly
    price, yearly price, discount, warranty, warranty period, storage, storage limit, user limit, trial period,
    payment method, cancellation fee, tax rate, vat rate, service level, response time, color, size, weight, height,
    width, length, material, battery life, power, speed, screen size, brand, model, serial number, shelf, warehouse,
    supplier, stock, rating, category, label, topic, class, team, priority, department, queue, tag, status, version,
    release date, license, password, port, host, region, room, floor, teacher, start time, end time, date, deadline,
    budget, duration, destination, travel date, travel mode, meeting point, departure time, arrival time, gate,
    terminal, platform, seat, hotel, driver, captain, code, door code, name, nickname, symbol, flag, flower, bird,
    tree, song, motto, founder, author, director, leader, king, doctor, coach, hobby, favorite food, favorite color,
    birthday, age, job, home town, pet, car, lucky number, shoe size, key, animal""")
ADJECTIVES = _pool("""red, blue, green, black, white, yellow, small, large, old, new, best, worst, cheap, first,
    last, main, second, local, cold, warm, hot, dry, wet, fast, slow, long, short, high, low, early, late, quiet,
    loud, soft, hard, sweet, sour, fresh, dark, bright, heavy, light, round, flat, deep, open, closed, free, full,
    empty, northern, southern, eastern, western, central, private, public, secret, official, digital, weekly, daily,
    annual, total, average, favorite, grilled, fried, smoked, baked, spicy, golden, silver, wooden, royal, modern,
    ancient, famous, popular, extra, standard""")
NOUNS = _pool("""apple, bread, cheese, soup, fish, crab, rice, pasta, pizza, salad, cake, cakes, tacos, curry, stew,
    noodles, sausage, beans, lamb, beef, chicken, duck, shrimp, tea, coffee, juice, milk, wine, beer, water, salt,
    sugar, honey, lemon, orange, banana, cherry, grape, melon, onion, garlic, pepper, tomato, potato, corn, mint,
    olive, oil, house, door, window, roof, wall, garden, park, bridge, tower, castle, church, temple, palace,
    market, harbor, island, beach, lake, river, mountain, valley, forest, desert, field, road, street, square,
    station, train, bus, boat, ship, plane, car, bike, truck, horse, dog, cat, lion, tiger, bear, wolf, fox, rabbit,
    eagle, owl, swan, whale, shark, snake, bee, ant, rose, lily, oak, pine, stone, gold, iron, steel, glass, wood,
    paper, cotton, wool, silk, leather, music, piano, violin, drum, guitar, song, book, letter, pen, pencil, map,
    lamp, chair, table, bed, mirror, clock, key, box, bag, cup, plate, knife, fork, spoon, shirt, coat, hat, shoe,
    glove, ring, ball, game, chess, tennis, football, hockey, golf, doctor, nurse, farmer, baker, pilot, sailor,
    soldier, painter, singer, dancer, writer, sun, moon, star, cloud, rain, snow, wind, storm, fire, ice, spring,
    summer, autumn, winter, morning, evening, night, money, sports, politics, science, health, travel, business,
    support, sales, finance, technology, hardware, software, account, billing, delivery, complaint, question,
    praise, urgent, normal, email, phone, chat, post, credit card, bank transfer, cash, voucher, taxi, subway, tram,
    ferry, hotel, hostel""")
NUMBER_WORDS = _pool("""one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen,
    fourteen, fifteen, twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety""")
UNITS = _pool("""days, weeks, months, years, hours, minutes, euros, dollars, pounds, percent, meters, miles,
    kilometers, grams, kilos, liters, users, people, rooms, points, pages, seats, nights, items, gigabytes, degrees,
    steps, watts""")
PLACES = _pool(
    "Terminal, Gate, Room, Platform, Hall, Line, Building, Floor, Shelf, Dock, Zone, Bus, Level, Section, Route"
)
MONTHS = _pool("""January, February, March, April, May, June, July, August, September, October, November, December""")
WEEKDAYS = _pool("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
NAME_PREFIXES = _pool(
    "New, North, South, East, West, Old, Port, Lake, Mount, San, Fort, Upper, Lower, Great, Little, Grand"
)
NAME_SUFFIXES = _pool(
    "City, Bay, Hill, Park, Beach, Valley, Island, Town, Springs, Falls, Plus, Pro, Max, Mini, Lite, One, Two"
)

COMMON = _pool("""about, above, access, active, add, after, again, agent, air, all, always, amount, animal, answer,
    any, area, arrive, art, ask, baby, back, bar, base, basket, bath, before, begin, below, between, bird, body,
    border, bottom, branch, break, bring, brother, build, button, buy, cafe, calendar, call, camp, card, care,
    carry, case, center, chain, change, charge, check, child, choice, choose, city, clean, clear, client, climb,
    club, coast, collect, company, computer, cook, copy, corner, cost, country, course, court, cover, create,
    culture, customer, cut, dance, data, daughter, day, decision, default, degree, design, detail, device, dinner,
    direct, direction, distance, document, domain, draw, dream, drink, drive, east, easy, eat, education, effect,
    energy, engine, entry, event, every, example, exit, express, face, fact, factory, family, father, feature,
    feedback, festival, file, film, final, find, finish, folder, follow, food, form, format, frame, friend, from,
    fruit, function, future, gallery, general, gift, give, glacier, good, government, grass, group, grow, hall,
    hand, happy, head, heart, help, hill, history, holiday, home, hospital, hour, human, idea, image, index,
    industry, inside, input, internet, job, join, judge, jump, kind, kit, lawyer, learn, leave, left, lesson, life,
    limit, line, list, little, lobster, lunch, machine, mail, make, man, mask, master, match, meal, meat, medicine,
    meet, member, memory, menu, message, metal, method, middle, minute, mode, month, more, mother, mouth, move,
    nation, nature, near, never, next, north, note, number, object, ocean, offer, olive, only, option, organic,
    other, outside, output, over, owner, pack, page, pair, parcel, parent, part, partner, party, passport, past,
    path, patient, pay, peace, people, permit, person, photo, picture, piece, place, plant, player, poem, point,
    policy, pool, poor, position, power, present, president, prize, problem, process, produce, product, profile,
    program, province, purpose, quality, quarter, queen, quick, race, radio, railway, range, read, reason, record,
    region, remote, rent, report, request, rest, result, rich, ride, right, rise, role, rule, run, safe, salmon,
    sand, sauce, save, scene, screen, script, sea, search, season, section, sell, send, sequence, series, service,
    session, set, shape, share, side, sign, single, site, skill, skin, sleep, smart, social, society, source, south,
    space, spice, sport, staff, stage, start, state, steak, step, stop, store, story, strategy, stream, strong,
    student, study, style, subject, suite, surface, survey, system, talk, task, teach, test, text, theater, theme,
    thing, time, title, today, token, tool, top, total, touch, tourist, town, track, trade, traffic, trail,
    training, transport, travel, trust, turn, type, under, union, unit, university, user, vacation, value,
    vegetable, vehicle, video, village, visit, voice, volume, wait, walk, war, wave, way, wedding, week, west,
    wheel, wild, word, work, world, write, yard, year, young, zero, zoo""")

CONSONANTS = _pool(
    "b, c, d, f, g, h, j, k, l, m, n, p, r, s, t, v, w, z, br, cl, dr, fl, gr, kr, pl, st, tr, sh, ch, th"
)
VOWELS = _pool("a, e, i, o, u, ai, ea, oo")
ENDINGS = ("", "", "", "n", "r", "s", "l", "m", "x")
UNSEEN_SYLLABLES = frozenset(
    consonant + vowel
    for i, consonant in enumerate(CONSONANTS)
    for j, vowel in enumerate(VOWELS)
    if (3 * i + j) % 5 == 0
)

INTRODUCTIONS = (
    "You are a helpful assistant.",
    "Answer from the facts below.",
    "You are a travel planner.",
    "You are a support agent.",
    "Use only these facts.",
    "You are a classifier.",
    "Read the notes and answer the question.",
    "Here is what we know.",
    "Plan the trip with these facts.",
    "These are our policies.",
    "Be brief and honest.",
    "You help our customers.",
    "Say unknown if you do not know.",
    "You know these cities.",
    "You answer questions about our products.",
)
REMARKS = (
    "{entity} is a nice place.",
    "Many people like {entity}.",
    "This part is about {entity}.",
    "Here are facts about {entity}.",
    "Facts about {entity}:",
    "{entity}:",
    "We often hear about {entity}.",
    "About {entity}.",
    "More on {entity} follows.",
    "Please note the following.",
    "Thank you for reading.",
    "This is important.",
)
QUESTIONS = (
    "What is the {attribute} of {entity}?",
    "Tell me the {attribute} of {entity}.",
    "What's the {attribute} of {entity}?",
    "Please give me the {attribute} of {entity}.",
    "Do you know the {attribute} of {entity}?",
    "Which is the {attribute} of {entity}?",
    "I want to know the {attribute} of {entity}.",
    "Name the {attribute} of {entity}.",
    "Can you tell me the {attribute} of {entity}?",
    "And the {attribute} of {entity}?",
)
