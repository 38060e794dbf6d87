/*
 * table.pml - a model of preload/core/account/block_table.c: insert, find, remove, growth and retirement, each access one
 * step.
 *
 * Checked by tests/model/run, which lists the configurations. The inlines bear the names of the C functions and make
 * the same accesses in the same order (all as seq_cst; the acquire loads of keys are the model's only simplification).
 *
 * Left out: reach (every slot is searched, up to one never used), memory that runs out, and the stripes of what has
 * entered and gone (one each). Two generations; all keys have the same place, so that all of them collide.
 *
 * A value word is state * 16 + bits: the caller's value, or for a copy the index of the slot it came from.
 *
 * Properties
 *     owner           between its insert and its remove of a key, find gives the value; remove gives it; then find 0
 *     reader          find never gives a value that its key never had
 *     remover         of several removers of one entry one gets it, as long as values differ
 *     end             when all keys have been removed, no slot holds an entry: none was doubled; and none is left in a
 *                     generation that all movers have been through, which then could never be retired
 *
 * Parameters (-D)
 *     SLOTS0 SLOTS1   slots of the generations
 *     MOVERS          threads that help the growth, 0 to 2; the first one begins it
 *     OWNERS          owners of keys 1 and 2
 *     ROUNDS ROUNDS2  how often the owner of key 1 and of key 2 inserts and removes it
 *     SHORT           owners do not look for their keys between insert and remove
 *     STAYS           owners keep what they inserted last: at the end it is in the newest generation
 *     READER          a thread that looks for key 1
 *     STRAY           a thread that removes key 1, which it does not own (a double free)
 *     EQUAL           all values are the same: with STRAY the known limit of the table, whose value word has no room
 *                     for a version and would need a 128-bit compare-and-swap
 *     BREAK_...       leaves out one thing; tests/model/run expects a violation from each
 */

#ifndef SLOTS0
#define SLOTS0 2
#endif
#ifndef SLOTS1
#define SLOTS1 3
#endif
#ifndef MOVERS
#define MOVERS 1
#endif
#ifndef OWNERS
#define OWNERS 1
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef ROUNDS2
#define ROUNDS2 ROUNDS
#endif

#define GONE 7
#define PLAIN 0
#define COPY 16
#define COPY_DEAD 32
#define FROZEN 48
#define FROZEN_DEAD 64
#define MOVED 80
#define STATE(word) (word & 240)
#define BITS(word) (word & 15)

#define SLOTS (SLOTS0 + SLOTS1)
#define FROM(g) (g == 0 -> 0 : SLOTS0)
#define UP_TO(g) (g == 0 -> SLOTS0 : SLOTS)
#ifdef STAYS
#define MAY_STAY(i) (i >= SLOTS0)
#else
#define MAY_STAY(i) false
#endif

#ifdef EQUAL
#define VALUE(key, round) 5
#define IS_OF(value, key) true
#else
#define VALUE(key, round) (key * 4 + round)
#define IS_OF(value, key) (value / 4 == key)
#endif

byte key_of[SLOTS];  /* slot.key: 0, a key, GONE; generation 0 first, then generation 1 */
byte word_of[SLOTS]; /* slot.value */
byte first;
byte newest = 1;
byte entered[2];
byte gone[2];
byte cursor; /* of generation 0 */

byte taken[16]; /* how often a value has been removed */
byte ended;

/* ---- claim, put ---- */

/* Where no slot is free, the C code makes another generation; here it tries this one again. */
inline next_of(g, at)
{
    at++;
    if
    :: at == UP_TO(g) -> at = FROM(g)
    :: else
    fi
}

/* A slot of generation `g` for `key`, filled with `word`: its index in `at`. */
inline claim(g, key, word, at)
{
    at = FROM(g);
    do
    :: atomic {
            held = key_of[at];
            if
            :: held == key && STATE(word) == PLAIN
            :: held == 0 || held == GONE -> key_of[at] = key; break /* the load, then the compare-and-swap */
            :: else -> next_of(g, at)
            fi
        };
        if
        :: held == key -> /* its block was freed through an entry point we do not see */
            old = word_of[at];
#ifndef BREAK_STALE_KEY_READ_AGAIN
            atomic {
                if
                :: key_of[at] == key
                :: else -> old = 0
                fi
            };
#endif
            atomic {
                if
                :: old != 0 && STATE(old) == PLAIN && word_of[at] == old ->
                    word_of[at] = word;
                    taken[BITS(old)]++;
                    goto_done = true
                :: else -> next_of(g, at)
                fi;
                held = 0;
                old = 0
            };
            if
            :: goto_done -> break
            :: else
            fi
        :: else -> held = 0
        fi
    od;
    if
    :: goto_done -> atomic { goto_done = false; gone[g]++ } /* what is there has entered itself */
    :: else -> word_of[at] = word
    fi;
    held = 0
}

/* Into the newest generation. */
inline put(key, word, at, g)
{
    do
    :: g = newest - 1;
        entered[g]++;
#ifndef BREAK_ENTER_CHECK
        if
        :: newest - 1 == g -> claim(g, key, word, at); break
        :: newest - 1 != g -> gone[g]++
        fi
#else
        claim(g, key, word, at);
        break
#endif
    od
}

/* ---- move_slot ---- */

/* Rule 3, for slot `from` of generation 0. */
inline move_slot(from)
{
    moved = word_of[from];
    do
    :: moved == 0 || STATE(moved) != PLAIN -> break
    :: atomic { else ->
            if
            :: word_of[from] != moved -> moved = word_of[from]
            :: else -> word_of[from] = FROZEN | moved; goto_done = true
            fi
        };
        if
        :: goto_done ->
            goto_done = false;
            moved_key = key_of[from];
#ifdef BREAK_COPY_REFERENCE
            put(moved_key, moved, copy, copy_g); /* a copy that says itself that it is valid */
            atomic {
                if
                :: word_of[from] == (FROZEN | moved) -> word_of[from] = MOVED | moved
                :: else -> word_of[copy] = 0; key_of[copy] = GONE; gone[copy_g]++
                fi
            };
#else
            put(moved_key, COPY | from, copy, copy_g);
            atomic {
                if
                :: word_of[from] == (FROZEN | moved) -> word_of[from] = MOVED | moved
                :: else -> goto_done = true /* removed from the original */
                fi
            };
#ifdef BREAK_GONE_EARLY
            gone[0]++;
#endif
            atomic {
                if
                :: !goto_done && word_of[copy] == (COPY | from) -> word_of[copy] = moved
                :: else -> goto_done = true /* or from the copy */
                fi
            };
            if
            :: goto_done ->
#ifdef BREAK_CLEAR_COPY
                skip;
#else
                word_of[copy] = 0;
                key_of[copy] = GONE;
                gone[copy_g]++;
#endif
                goto_done = false
            :: else
            fi;
#endif
#ifndef BREAK_GONE_EARLY
            gone[0]++;
#endif
            break
        :: else
        fi
    od;
    moved = 0;
    moved_key = 0;
    copy = 0;
    copy_g = 0
}

inline insert(key, value)
{
    put(key, value, spot, spot_g);
#ifndef BREAK_INSERTER_MOVES
    if
    :: newest - 1 != spot_g -> move_slot(spot)
    :: else
    fi;
#endif
    spot = 0;
    spot_g = 0
}

/* ---- find, remove ---- */

/* read_slot and value_in for slot `at`: `result` and the `word` that says so. */
inline read_slot(key, at)
{
    do
    :: word = word_of[at];
        if
        :: STATE(word) == PLAIN || STATE(word) == FROZEN -> result = BITS(word)
        :: STATE(word) == COPY ->
            origin = word_of[BITS(word)];
            atomic { result = (STATE(origin) == MOVED -> BITS(origin) : 0); origin = 0 }
        :: else -> result = 0
        fi;
#ifdef BREAK_KEY_READ_AGAIN
        break
#else
        atomic {
            if
            :: key_of[at] != key -> result = 0; break
            :: else
            fi
        };
        if
        :: result != 0 || STATE(word) != COPY -> break
        :: else ->
            if
            :: word_of[at] == word -> break
            :: word_of[at] != word
            fi
        fi
#endif
    od
}

/* The slot's turn in a search; is_remove tells serve what it wishes. */
inline serve(key, at, is_remove)
{
    do
    :: read_slot(key, at);
        if
        :: result == 0 || !is_remove -> break
        :: else ->
            atomic {
                if
                :: word_of[at] != word -> result = 0
                :: word_of[at] == word && STATE(word) == PLAIN -> word_of[at] = 0
                :: word_of[at] == word && STATE(word) == FROZEN -> word_of[at] = FROZEN_DEAD | BITS(word)
                :: word_of[at] == word && STATE(word) == COPY -> word_of[at] = COPY_DEAD | BITS(word)
                fi
            };
            if
            :: result != 0 && STATE(word) == PLAIN -> key_of[at] = GONE; gone[g]++; break
            :: result != 0 && STATE(word) != PLAIN -> break
            :: result == 0
            fi
        fi
    od;
    word = 0
}

inline search(key, is_remove)
{
    result = 0;
    g = first;
    do
    :: g >= newest -> break
    :: g < newest ->
        at = FROM(g);
        do
        :: atomic {
                if
                :: at == UP_TO(g) -> break
                :: else -> held = key_of[at]
                fi
            };
            if
            :: held == 0 -> break
            :: held == key ->
                serve(key, at, is_remove);
                if
                :: result != 0 -> break
                :: else
                fi
            :: else
            fi;
            at++;
            held = 0
        od;
        held = 0;
        if
        :: result != 0 -> break
        :: else -> g++
        fi
    od;
    at = 0;
    g = 0
}

#define LOCALS_OF_PUT                                                                                                  \
    byte held;                                                                                                         \
    byte old;                                                                                                          \
    bool goto_done;                                                                                                    \
    byte moved;                                                                                                        \
    byte moved_key;                                                                                                    \
    byte copy;                                                                                                         \
    byte copy_g

#define LOCALS_OF_SEARCH                                                                                               \
    byte result;                                                                                                       \
    byte word;                                                                                                         \
    byte origin;                                                                                                       \
    byte g;                                                                                                            \
    byte at

/* ---- who does what ---- */

proctype Owner(byte key)
{
    LOCALS_OF_PUT;
    LOCALS_OF_SEARCH;
    byte spot;
    byte spot_g;
    byte round;
    bool is_find_next;

    do
    :: round == (key == 1 -> ROUNDS : ROUNDS2) -> break
    :: else ->
        insert(key, VALUE(key, round));
#ifdef STAYS
        if
        :: round + 1 == ROUNDS -> break
        :: else
        fi;
#endif
#ifndef SHORT
        is_find_next = true;
#endif
again:
        search(key, !is_find_next);
        atomic {
#ifdef STRAY
            if
            :: key == 1 -> skip /* somebody else may have taken it */
            :: else -> assert(result == VALUE(key, round))
            fi;
            if
            :: !is_find_next && result != 0 -> taken[result]++
            :: else
            fi;
            assert(result == 0 || IS_OF(result, key));
#else
            assert(result == VALUE(key, round)); /* owner */
#endif
            result = 0;
            if
            :: is_find_next -> is_find_next = false; goto again
            :: else -> round++
            fi
        }
    od;
#if !defined(STRAY) && !defined(SHORT) && !defined(STAYS)
    search(key, false);
    assert(result == 0); /* owner */
#endif
    ended++
}

proctype Reader(byte key; bool is_remove)
{
    byte held;
    LOCALS_OF_SEARCH;

    search(key, is_remove);
    atomic {
        assert(result == 0 || IS_OF(result, key)); /* reader */
        if
        :: is_remove && result != 0 -> taken[result]++
        :: else
        fi;
        result = 0;
        ended++
    }
}

/* grow, help_growth one slot at a time, retire. */
proctype Mover(bool begins)
{
    LOCALS_OF_PUT;
    byte index;

    if
    :: begins -> newest = 2
    :: !begins -> newest == 2
    fi;
    do
    :: atomic { cursor < SLOTS0 -> index = cursor; cursor++ };
        move_slot(index);
        index = 0
    :: cursor == SLOTS0 -> break
    od;
#ifndef BREAK_USED
#ifdef BREAK_ENTERED_READ_FIRST
    index = entered[0];
    if
    :: gone[0] != index -> goto end
    :: gone[0] == index
    fi;
#else
    index = gone[0];
    if
    :: entered[0] != index -> goto end
    :: entered[0] == index
    fi;
#endif
#endif
    atomic {
        if
        :: first == 0 -> first = 1
        :: else -> goto end
        fi
    };
    d_step { /* the pages go back: zeros */
        index = 0;
        do
        :: index < SLOTS0 -> key_of[index] = 0; word_of[index] = 0; index++
        :: else -> break
        od;
        index = 0
    };
end:
    ended++
}

#ifdef READER
#define READERS 1
#else
#define READERS 0
#endif
#ifdef STRAY
#define STRAYS 1
#else
#define STRAYS 0
#endif

proctype Monitor()
{
    byte i;

    timeout ->
    d_step {
        assert(ended == OWNERS + MOVERS + READERS + STRAYS);
        do
        :: i < SLOTS ->
            /* end */
            assert(word_of[i] == 0 || STATE(word_of[i]) == MOVED || STATE(word_of[i]) == FROZEN_DEAD || MAY_STAY(i));
            i++
        :: else -> break
        od;
        i = 0;
#ifndef EQUAL
        do
        :: i < 16 -> assert(taken[i] <= 1); i++ /* remover */
        :: else -> break
        od
#endif
    }
}

init
{
    atomic {
        run Owner(1);
#if OWNERS == 2
        run Owner(2);
#endif
#if MOVERS >= 1
        run Mover(true);
#endif
#if MOVERS == 2
        run Mover(false);
#endif
#ifdef READER
        run Reader(1, false);
#endif
#ifdef STRAY
        run Reader(1, true);
#endif
        run Monitor()
    }
}
