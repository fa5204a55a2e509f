package io.sealstone.function;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs a function on the machine of its author, without a device and without a sandbox. Unit tests
 * create one with the objects of a call; {@link #main} runs a class on files.
 */
public final class LocalRunner {
    private static final String USAGE =
            "usage: java -cp JAR:SDK io.sealstone.function.LocalRunner CLASS"
                    + " [--arg NAME=VALUE]... [--method NAME] [--update] FILE...";

    private final LocalHost host;
    private long status;

    /**
     * Creates a runner.
     *
     * @param objects contents of the objects, in the order of their handles
     */
    public LocalRunner(List<byte[]> objects) {
        host = new LocalHost(objects, 16 << 20);
    }

    /**
     * Runs a call.
     *
     * @param function the function
     * @param method the method, which may be empty
     * @param arguments the arguments
     * @return this runner, with the results
     * @throws Exception the function threw one that is no {@link OsdException}
     */
    public LocalRunner run(OsdFunction function, String method, Map<String, String> arguments) throws Exception {
        OsdObject[] objects = new OsdObject[host.objects.size()];
        for (int handle = 0; handle < objects.length; handle++) {
            objects[handle] =
                    new OsdObject(handle, 0x10000, 0x10000 + handle, host.length(handle), 0x80, 0xFF);
        }
        Call call = new Call(method, encode(arguments), objects, 30_000, 16 << 20);
        try {
            status = function.run(new Osd(host), call);
        } catch (OsdException error) {
            host.log.add(error.getMessage());
            status = -error.errno();
        }
        return this;
    }

    /**
     * Returns the status of the call.
     *
     * @return 0 for success
     */
    public long status() {
        return status;
    }

    /**
     * Returns the result of the call.
     *
     * @return the bytes
     */
    public byte[] result() {
        return host.result().clone();
    }

    /**
     * Returns the lines of the log.
     *
     * @return the lines
     */
    public List<String> log() {
        return List.copyOf(host.log);
    }

    /**
     * Returns the objects after the call.
     *
     * @return their contents; null for a removed object
     */
    public List<byte[]> objects() {
        return new ArrayList<>(host.objects);
    }

    private static byte[] encode(Map<String, String> arguments) {
        ByteArrayOutputStream encoded = new ByteArrayOutputStream();
        for (Map.Entry<String, String> argument : arguments.entrySet()) {
            byte[] bytes = (argument.getKey() + "=" + argument.getValue()).getBytes(StandardCharsets.UTF_8);
            encoded.write(bytes, 0, bytes.length);
            encoded.write(0);
        }
        return encoded.toByteArray();
    }

    /**
     * Runs a class on files; without {@code --update} it changes none of them.
     *
     * @param options the class, options and files
     * @throws IOException a file cannot be read or written
     */
    public static void main(String[] options) throws IOException {
        String name = null;
        String method = "";
        boolean isUpdate = false;
        Map<String, String> arguments = new LinkedHashMap<>();
        List<Path> files = new ArrayList<>();
        for (int at = 0; at < options.length; at++) {
            String option = options[at];
            if (option.equals("--update")) {
                isUpdate = true;
            } else if (option.equals("--arg") || option.equals("--method")) {
                String value = at + 1 < options.length ? options[++at] : "";
                int equals = value.indexOf('=');
                if (option.equals("--method")) {
                    method = value;
                } else if (equals > 0) {
                    arguments.put(value.substring(0, equals), value.substring(equals + 1));
                } else {
                    fail(USAGE);
                }
            } else if (option.startsWith("--")) {
                fail(USAGE);
            } else if (name == null) {
                name = option;
            } else {
                files.add(Path.of(option));
            }
        }
        if (name == null) {
            fail(USAGE);
        }
        List<byte[]> contents = new ArrayList<>();
        for (Path file : files) {
            contents.add(Files.readAllBytes(file));
        }
        LocalRunner runner = new LocalRunner(contents);
        try {
            Object function = Class.forName(name).getDeclaredConstructor().newInstance();
            runner.run((OsdFunction) function, method, arguments);
        } catch (Exception error) {
            runner.log().forEach(System.err::println);
            error.printStackTrace();
            System.exit(1);
        }
        runner.log().forEach(System.err::println);
        System.out.write(runner.result());
        System.out.flush();
        for (int handle = 0; isUpdate && handle < files.size(); handle++) {
            byte[] content = runner.objects().get(handle);
            if (content != null) {
                Files.write(files.get(handle), content);
            }
        }
        if (runner.status() != 0) {
            fail("error: status " + runner.status());
        }
    }

    private static void fail(String text) {
        System.err.println(text);
        System.exit(1);
    }
}
