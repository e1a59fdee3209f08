/* Activations by name: what activation.h lists, and the reading of "clamp(-1, 1)". */
#define _GNU_SOURCE /* strtod_l */
#include "activation.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

static const struct {
    const char *name, *form;
    int parameters;
    double standard[FGE_ACTIVATION_PARAMETERS];
} table[] = {
#define FGE_ENTRY(name, kind, parameters, form, first, second) {#name, #name form, parameters, {first, second}},
    FGE_ACTIVATIONS(FGE_ENTRY)
#undef FGE_ENTRY
};

int fge_activation_count(void) { return FGE_ACTIVATION_COUNT; }
static int exists(int id) { return id >= 0 && id < FGE_ACTIVATION_COUNT; }
const char *fge_activation_name(int id) { return exists(id) ? table[id].name : NULL; }
const char *fge_activation_form(int id) { return exists(id) ? table[id].form : NULL; }
int fge_activation_parameters(int id) { return exists(id) ? table[id].parameters : 0; }
fge_reserve_kind fge_activation_reserve(int id) { return fge_reserve_kind_of(id); }

/* The number at *text, as it is written in programs whatever the locale; steps over it and what ends it. */
static int read_number(const char **text, char ended_by, double *number) {
    char *end;
#if defined(_WIN32)
    const _locale_t plain = _create_locale(LC_NUMERIC, "C");
    *number = _strtod_l(*text, &end, plain);
    _free_locale(plain);
#else
    const locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    *number = plain ? strtod_l(*text, &end, plain) : strtod(*text, &end);
    if (plain) freelocale(plain);
#endif
    if (end == *text) return 0;
    while (*end == ' ') end++;
    *text = end + 1;
    return *end == ended_by;
}

const char *fge_activation_parse(const char *text, fge_activation *activation) {
    const size_t length = strcspn(text, "(");
    int id = 0;
    while (exists(id) && !(strlen(table[id].name) == length && memcmp(table[id].name, text, length) == 0)) id++;
    if (!exists(id)) return "";
    *activation = (fge_activation){.id = id};
    double *p = activation->parameter;
    memcpy(p, table[id].standard, sizeof table[id].standard);
    if (!text[length]) return NULL;
    const int parameters = table[id].parameters;
    if (parameters == 0) return "takes no number";
    const char *rest = text + length + 1;
    for (int i = 0; i < parameters; i++)
        if (!read_number(&rest, i + 1 < parameters ? ',' : ')', &p[i]))
            return parameters == 1 ? "takes one number, as in leaky_relu(0.01)" : "takes two numbers, as in clamp(-1, 1)";
    if (*rest) return "has characters behind its parenthesis";
    if (parameters == 1 && !(p[0] - p[0] == 0)) return "takes a finite number";
    if (parameters == 2 && !(p[0] <= p[1])) return "takes two numbers of which the first isn't above the second";
    if (parameters == 1 && p[0] == 0) *activation = (fge_activation){.id = FGE_relu}; /* which has no inf * 0 */
    return NULL;
}
