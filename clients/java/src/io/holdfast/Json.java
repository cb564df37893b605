package io.holdfast;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** JSON, as far as the API has it. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** The object that a text has. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> parse(String text) {
        Json in = new Json(text);
        Object value = in.value();
        in.space();
        if (!(value instanceof Map) || in.at != text.length()) throw in.wrong();
        return (Map<String, Object>) value;
    }

    static String text(Map<String, Object> object, String name) {
        return object.get(name) instanceof String s ? s : "";
    }

    static long number(Map<String, Object> object, String name, long usual) {
        return object.get(name) instanceof Number n ? n.longValue() : usual;
    }

    static List<Long> numbers(Map<String, Object> object, String name) {
        return object.get(name) instanceof List<?> l ? l.stream().map(n -> ((Number) n).longValue()).toList() : List.of();
    }

    static boolean flag(Map<String, Object> object, String name) {
        return Boolean.TRUE.equals(object.get(name));
    }

    @SuppressWarnings("unchecked")
    static Map<String, Object> object(Map<String, Object> object, String name) {
        return object.get(name) instanceof Map<?, ?> m ? (Map<String, Object>) m : null;
    }

    @SuppressWarnings("unchecked")
    static List<Map<String, Object>> list(Map<String, Object> object, String name) {
        return object.get(name) instanceof List<?> l ? (List<Map<String, Object>>) l : List.of();
    }

    /** The text of a value: an object, a list, a text, a number, true, false or null. */
    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(out, value);
        return out.toString();
    }

    private static void write(StringBuilder out, Object value) {
        if (value instanceof Map<?, ?> object) {
            String before = "{";
            for (Map.Entry<?, ?> field : object.entrySet()) {
                out.append(before);
                write(out, field.getKey());
                out.append(':');
                write(out, field.getValue());
                before = ",";
            }
            out.append(object.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String before = "[";
            for (Object item : list) {
                out.append(before);
                write(out, item);
                before = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String s) {
            out.append('"');
            for (char c : s.toCharArray()) {
                if (c == '"' || c == '\\') out.append('\\').append(c);
                else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
                else out.append(c);
            }
            out.append('"');
        } else {
            out.append(value);
        }
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("no JSON at " + at);
    }

    private void space() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
    }

    private char next() {
        if (at >= text.length()) throw wrong();
        return text.charAt(at++);
    }

    private boolean skip(char c) {
        space();
        if (at >= text.length() || text.charAt(at) != c) return false;
        at++;
        return true;
    }

    private Object value() {
        if (skip('{')) return fields();
        if (skip('[')) return items();
        if (skip('"')) return string();
        for (Object word : new Object[] {true, false, null}) {
            String name = String.valueOf(word);
            if (text.startsWith(name, at)) {
                at += name.length();
                return word;
            }
        }
        int from = at;
        while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) at++;
        String number = text.substring(from, at);
        if (number.isEmpty()) throw wrong();
        if (number.matches("-?[0-9]+")) return Long.parseLong(number); // a token must not be rounded
        return Double.parseDouble(number);
    }

    private Map<String, Object> fields() {
        Map<String, Object> object = new LinkedHashMap<>();
        if (skip('}')) return object;
        do {
            if (!skip('"')) throw wrong();
            String name = string();
            if (!skip(':')) throw wrong();
            object.put(name, value());
        } while (skip(','));
        if (!skip('}')) throw wrong();
        return object;
    }

    private List<Object> items() {
        List<Object> list = new ArrayList<>();
        if (skip(']')) return list;
        do list.add(value()); while (skip(','));
        if (!skip(']')) throw wrong();
        return list;
    }

    private String string() {
        StringBuilder s = new StringBuilder();
        for (char c = next(); c != '"'; c = next()) {
            if (c != '\\') {
                s.append(c);
                continue;
            }
            c = next();
            switch (c) {
                case 'n' -> s.append('\n');
                case 't' -> s.append('\t');
                case 'r' -> s.append('\r');
                case 'b' -> s.append('\b');
                case 'f' -> s.append('\f');
                case 'u' -> {
                    if (at + 4 > text.length()) throw wrong();
                    s.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    at += 4;
                }
                default -> s.append(c);
            }
        }
        return s.toString();
    }
}
