/*
 * typing.c - what a person types into the last line of the live screen: a filter, a limit.
 */
#include <string.h>

#include "report/watch/terminal.h"
#include "report/watch/watch.h"

void watch_type(char *text, size_t capacity, int key)
{
    size_t length = strlen(text);
    if (key == TERMINAL_KILL_LINE) {
        text[0] = '\0';
    } else if (key == TERMINAL_BACKSPACE || key == TERMINAL_DELETE) {
        while (length > 0 && ((unsigned char)text[--length] & 0xc0) == 0x80)
            ; /* the later bytes of a character in UTF-8 */
        text[length] = '\0';
    } else if (key >= ' ' && key < 256 && length + 1 < capacity) {
        text[length] = (char)key;
        text[length + 1] = '\0';
    }
}
